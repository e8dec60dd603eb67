"""Charge a request to the limits of its caller: by an estimate when it starts, by its usage when it ends."""

from __future__ import annotations

from collections.abc import Callable

from router.errors import RequestError
from router.gateway.flow.outbound import OutboundRequest
from router.placement.lifecycle_events import Request, Usage


def refused_early(outbound: OutboundRequest, now_s: float) -> RequestError | None:
    """Return the refusal of a caller whose last request was refused, if any request would be refused still.

    So the gateway does not tokenise the prompts of a caller that sends on above its limits.
    """
    limits = outbound.caller.limits
    if limits is None or not limits.refused:
        return None
    refusal = limits.peek(now_s)
    if refusal is not None:
        outbound.limit_lines = limits.lines()
    return refusal


def charge(outbound: OutboundRequest, expected: Callable[[Request], int], now_s: float) -> RequestError | None:
    """Charge an identified request to its caller's limits, or return the error if it is above one of them.

    The estimate is its prompt tokens and the output tokens that `expected` returns. A request that runs no model costs
    no tokens.
    """
    limits, request = outbound.caller.limits, outbound.request
    assert limits is not None and request is not None
    tokens = request.prompt_tokens + expected(request) if outbound.route.prefills else 0
    admitted = limits.admit(tokens, now_s)
    outbound.limit_lines = limits.lines()
    if isinstance(admitted, RequestError):
        return admitted
    outbound.charge = admitted
    return None


def used_tokens(outbound: OutboundRequest, usage: Usage, counted_events: int) -> int:
    """Return the tokens of a complete answer: those it reports, or else the estimated prompt and its events."""
    request = outbound.request
    if request is None or not outbound.route.prefills:
        return 0
    prompt = request.prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens
    output = counted_events if usage.completion_tokens is None else usage.completion_tokens
    return prompt + output


def settle(
    outbound: OutboundRequest, answer_tokens: int | None, sent_events: int, now_s: float, *, began: bool, left: bool
) -> None:
    """End the request's charge.

    `answer_tokens` are those of a complete answer. Otherwise an answer that `began` costs its prompt and the
    `sent_events` so far, and a request whose client `left` while a worker had it costs its prompt. All else is free.
    """
    open_charge, request = outbound.charge, outbound.request
    assert open_charge is not None and request is not None
    if answer_tokens is not None:
        open_charge.settle(answer_tokens, now_s, served=True)
    elif (began or left) and outbound.route.prefills:
        open_charge.settle(request.prompt_tokens + sent_events, now_s, served=True)
    else:
        open_charge.settle(0, now_s, served=began or left)

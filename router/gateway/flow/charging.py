"""Charge a request to the limits of its caller: by an estimate when it starts, by its usage when it ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from router.errors import RequestError
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.http.routes import Route
from router.placement.lifecycle_events import Request, Usage
from router.tokenization.intake import CHAT_PATH, MESSAGES_PATH

BYTES_PER_TOKEN: Final = 4
"""English text has about four bytes per token."""
_ONE_TURN: Final = frozenset({CHAT_PATH, MESSAGES_PATH})
"""Paths whose output limit holds for the whole of each answer."""


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

    The estimate is its prompt tokens and, if the path generates text, the output tokens that `expected` returns. A
    request that runs no model costs no tokens.
    """
    limits, request, route = outbound.caller.limits, outbound.request, outbound.route
    assert limits is not None and request is not None
    tokens = 0
    if route.prefills:  # a WebSocket has no prompt yet, but it needs a bucket that is not empty
        tokens = max(1, request.prompt_tokens + (expected(request) if route.generates else 0))
    admitted = limits.admit(tokens, now_s)
    outbound.limit_lines = limits.lines()
    if isinstance(admitted, RequestError):
        return admitted
    outbound.charge = admitted
    return None


def text_tokens(text_bytes: int) -> int:
    """Return the tokens that a client is charged for text that nobody has counted."""
    return math.ceil(text_bytes / BYTES_PER_TOKEN)


def answer_tokens(request: Request, route: Route, usage: Usage, reserved_tokens: int, text_bytes: int) -> int:
    """Return the charge of a complete answer with `text_bytes` of text.

    It is the reported usage. Output that is not reported costs what was reserved for it, since an answer may have
    tokens that no client sees (hidden reasoning), and no less than its text.
    """
    if not route.prefills:
        return 0
    prompt = request.prompt_tokens if usage.prompt_tokens is None else max(0, usage.prompt_tokens)
    if usage.completion_tokens is not None:
        return prompt + max(0, usage.completion_tokens)
    if not route.generates:
        return prompt
    reserved = max(0, reserved_tokens - request.prompt_tokens)
    return prompt + max(reserved, _read_tokens(request, text_bytes))


def left_tokens(request: Request, route: Route, text_bytes: int) -> int:
    """Return the charge of an answer that ended early, after `text_bytes` of text: the prompt and what was sent."""
    if not route.prefills:
        return 0
    return request.prompt_tokens + (_read_tokens(request, text_bytes) if route.generates else 0)


def _read_tokens(request: Request, text_bytes: int) -> int:
    """Return the tokens of the text that was sent, but no more than the request allows.

    The limit counts on paths that have one prompt and one turn only: elsewhere it holds for each.
    """
    tokens = text_tokens(text_bytes)
    if request.max_tokens is None or request.path not in _ONE_TURN:
        return tokens
    return min(tokens, max(0, request.max_tokens) * max(1, request.answers))


def settle(outbound: OutboundRequest, usage: Usage | None, text_bytes: int, now_s: float, *, served: bool) -> None:
    """End the request's charge. `usage` is that of a complete answer, None without one.

    A request that a worker has not `served` is free.
    """
    open_charge, request = outbound.charge, outbound.request
    assert open_charge is not None and request is not None
    tokens = 0
    if usage is not None:
        tokens = answer_tokens(request, outbound.route, usage, open_charge.tokens, text_bytes)
    elif served:
        tokens = left_tokens(request, outbound.route, text_bytes)
    open_charge.settle(tokens, now_s, served=served)

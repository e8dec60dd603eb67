"""How much prefill and decode a worker did, as sums that add up over minutes, processes and workers."""

from __future__ import annotations

import msgspec

from router.placement.tickets import Ticket


class WorkMeasured(msgspec.Struct):
    """The prefills and the answers of one worker, for the plan of its role.

    `prefills` are prompts that it computed. `timed` of them have an estimate: `prefill_s` is the sum of their times and
    `prefill_square_s2` that of the squares. `handed_s` is the part of `prefill_s` that was for other workers.
    `wait_s` is the time until the first token less the own prefill, over `waits` prefills. Of a prompt whose start was
    pulled, the prefill is that of the rest, and its time until the first token is no wait. `answers` have `gaps`
    between their tokens; `decode_s` is the time of `seen_gaps` of them. `context_gaps` is the sum over gaps of the
    context, and `step_gaps_s` that of the learned growth of a step per context token, over `learned_gaps`.
    """

    prefills: int = 0
    timed: int = 0
    prompt_tokens: int = 0
    prefill_s: float = 0.0
    prefill_square_s2: float = 0.0
    handed_s: float = 0.0
    waits: int = 0
    wait_s: float = 0.0
    answers: int = 0
    gaps: int = 0
    seen_gaps: int = 0
    decode_s: float = 0.0
    context_gaps: float = 0.0
    learned_gaps: int = 0
    step_gaps_s: float = 0.0


def own_prefill_s(ticket: Ticket) -> float | None:
    """Return the time of the request's own prefill at the worker's speed; None if that is not learned."""
    speed, own = ticket.load.speed, ticket.reservation
    return None if speed is None else speed.prefill_s(own.uncached_tokens, own.attention)


def count_work(
    work: WorkMeasured, ticket: Ticket, own_s: float | None, output_tokens: int | None, now_s: float
) -> None:
    """Count a served request's prefill and its answer, of which a part of a KV handover has one alone.

    `own_s` is `own_prefill_s`.
    """
    leg = ticket.record.leg
    if leg is None or leg.part == "prefill":
        _count_prefill(work, ticket, own_s, handed=leg is not None)
    if output_tokens and (leg is None or leg.part == "decode"):
        _count_answer(work, ticket, output_tokens, now_s)


def _count_prefill(work: WorkMeasured, ticket: Ticket, own_s: float | None, *, handed: bool) -> None:
    speed, ttft_s = ticket.load.speed, ticket.record.ttft_s
    work.prefills += 1
    work.prompt_tokens += ticket.view.prompt_tokens
    if speed is None or own_s is None:
        return
    work.timed += 1
    work.prefill_s += own_s
    work.prefill_square_s2 += own_s * own_s
    if handed:
        work.handed_s += own_s
    if ttft_s is not None and not ticket.moved_tokens:
        work.waits += 1
        work.wait_s += ttft_s - own_s - speed.fixed_s


def _count_answer(work: WorkMeasured, ticket: Ticket, output_tokens: int, now_s: float) -> None:
    gaps, decode_s, step_s = output_tokens - 1, ticket.decode_s(now_s), ticket.load.steps.context_token_s
    work.answers += 1
    work.gaps += gaps
    work.context_gaps += gaps * (ticket.view.prompt_tokens + 0.5 * output_tokens)
    if decode_s is not None:
        work.seen_gaps += gaps
        work.decode_s += decode_s
    if step_s is not None:
        work.learned_gaps += gaps
        work.step_gaps_s += gaps * step_s

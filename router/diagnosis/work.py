"""Count how much prefill and decode a worker did."""

from __future__ import annotations

from router.diagnosis.measured import WorkMeasured
from router.placement.tickets import Ticket


def own_prefill_s(ticket: Ticket) -> float | None:
    """Return the time of the request's own prefill at the worker's speed; None if that is not learned."""
    speed, own = ticket.load.speed, ticket.reservation
    return None if speed is None else speed.prefill_s(own.uncached_tokens, own.attention)


def prefill_wait_s(ticket: Ticket, own_s: float | None) -> float | None:
    """Return the time on the worker before the request's own prefill; None if that is not known.

    It is not known for a prompt whose KV cache came from another worker, because the transfer took a part of that time.
    """
    speed, ttft_s = ticket.load.speed, ticket.record.ttft_s
    if speed is None or own_s is None or ttft_s is None or ticket.moved_tokens:
        return None
    return ttft_s - own_s - speed.fixed_s


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
    work.prefills += 1
    work.prompt_tokens += ticket.view.prompt_tokens
    if own_s is None:
        return
    work.timed += 1
    work.prefill_s += own_s
    work.prefill_square_s2 += own_s * own_s
    if handed:
        work.handed_s += own_s
    wait_s = prefill_wait_s(ticket, own_s)
    if wait_s is not None:
        work.waits += 1
        work.wait_s += wait_s


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

"""Readings from the times at which the tokens of a batch's stream came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from loadtest.calibrate.readings import CalibrationError, Kind, Reading
from loadtest.calibrate.worker.plan import Batch

_FEWEST_STEPS = 8
_AROUND = 2
"""Tokens before and after a mixed step. A token that the client sees late makes the next gap shorter."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """`tokens` of one sequence that came in one event."""

    at_s: float
    sequence: int
    tokens: int


def decode_reading(batch: Batch, arrivals: Sequence[Arrival]) -> Reading:
    """Return the mean step between the first token of the last sequence to start and the end of the first to end.

    Raises:
        CalibrationError: the sequences hardly ran together, or ended early.
    """
    counts, last_s = _whole(batch, arrivals)
    started_s, reference = max((times[0], number) for number, times in enumerate(counts))
    ended_s = min(last_s)
    steps = sum(at_s <= ended_s for at_s in counts[reference]) - 1
    if steps < _FEWEST_STEPS:
        raise CalibrationError(
            f"of {batch.output_tokens} decode steps only {max(steps, 0)} had all {batch.sequences} sequences: "
            "does something else use the worker, or does it run fewer sequences at once?"
        )
    took_s = counts[reference][steps] - started_s
    before = sum(sum(at_s <= started_s for at_s in times) for times in counts)
    context = batch.sequences * batch.prompt_tokens + before + batch.sequences * (steps - 1) / 2
    what = f"{batch.sequences} x {context / batch.sequences:,.0f} tokens"
    return Reading(Kind.DECODE, what, took_s / steps * 1e3, decodes=batch.sequences, context_tokens=context)


def mixed_reading(
    batch: Batch, arrivals: Sequence[Arrival], prompt_tokens: int, sent_s: float, answered_s: float
) -> Reading:
    """Return the step that had a prompt, sent and answered at these times, beside the decodes of `batch`.

    Raises:
        CalibrationError: the decodes ended before.
    """
    times = sorted(one.at_s for one in arrivals if one.sequence == 0)
    gaps = [after - before for before, after in pairwise(times)]
    inside = [number for number, end_s in enumerate(times[1:]) if end_s >= sent_s and times[number] <= answered_s]
    longest = max(inside, key=gaps.__getitem__, default=-1)
    if not _AROUND <= longest < len(gaps) - _AROUND:
        raise CalibrationError("the decodes ended before the prompt beside them: the worker is slower than the plan")
    around = gaps[longest - _AROUND : longest + _AROUND + 1]
    ms = (sum(around) - 2 * _AROUND * median(gaps)) * 1e3
    context = batch.sequences * (batch.prompt_tokens + longest + 1)
    return Reading(
        Kind.MIXED,
        f"{prompt_tokens:,} beside {batch.sequences} decodes",
        ms,
        new_tokens=prompt_tokens,
        attended_pairs=0.5 * prompt_tokens**2,
        decodes=batch.sequences,
        context_tokens=context,
    )


def _whole(batch: Batch, arrivals: Sequence[Arrival]) -> tuple[list[list[float]], list[float]]:
    """Return the times of each sequence's tokens, and of the last."""
    times: list[list[float]] = [[] for _ in range(batch.sequences)]
    for one in _known(batch, arrivals):
        times[one.sequence] += [one.at_s] * one.tokens
    short = [len(own) for own in times if len(own) < batch.output_tokens]
    if short:
        raise CalibrationError(
            f"a sequence ended after {min(short)} of {batch.output_tokens} tokens: does the worker honour ignore_eos, "
            "and stream every token?"
        )
    return times, [own[-1] for own in times]


def _known(batch: Batch, arrivals: Sequence[Arrival]) -> Iterator[Arrival]:
    return (one for one in arrivals if 0 <= one.sequence < batch.sequences)

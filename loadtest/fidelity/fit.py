"""A profile's step costs from a recording's timestamps.

What is known is when each request was first scheduled, and when its first and last token came. In between lie whole
steps, and the engine model says what they computed: so the sum of their costs, linear in the profile's constants, is
what was observed. The constants follow by least squares, the replay with new constants gives new steps, and so on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from backends.engine.engine import StepResult
from backends.engine.profile import DecodeCost, PrefillCost, Profile
from loadtest.fidelity.least_squares import Row, fit_relative
from loadtest.fidelity.recording import RecordedRequest, Recording
from loadtest.fidelity.replay import Replay, replay

ROUNDS = 12
TOLERANCE = 0.02
"""Relative error from which on a row counts less: the recordings do not say which prompts were cached in part."""
FIRST_TOKEN_WEIGHT = 0.2
"""Of the time to the first token: two or three steps of which the model may have one too many, against hundreds
between the first and the last token."""
_EDGE_S = 1e-9


@dataclass(frozen=True, slots=True)
class Constants:
    """A profile's costs with one fixed part for prefill and decode: both read the weights once."""

    a_ms: float
    prefill_b_us: float
    prefill_d_ns: float
    decode_b_ms: float
    decode_k_ns: float

    def applied_to(self, profile: Profile) -> Profile:
        """The profile with these costs."""
        return replace(
            profile,
            prefill=PrefillCost(self.a_ms, self.prefill_b_us, self.prefill_d_ns),
            decode=DecodeCost(self.a_ms, self.decode_b_ms, self.decode_k_ns),
        )


def fit(recording: Recording, start: Profile, training: Sequence[int], *, async_scheduling: bool = True) -> Profile:
    """`start` with its costs fitted to the requests with the indices in `training`; no other request's times are read.

    Every round moves half way to its solution; the round that came closest to the training requests is kept.
    """
    constants = [start.decode.a_ms, start.prefill.b_us, start.prefill.d_ns, start.decode.b_ms, start.decode.k_ns]
    best: tuple[float, Profile] | None = None
    for _ in range(ROUNDS):
        profile = Constants(*constants).applied_to(start)
        played = replay(recording, profile, async_scheduling=async_scheduling)
        error = training_error(recording, played, training)
        if best is None or error < best[0]:
            best = error, profile
        solution = fit_relative(list(_rows(recording, played, training)), TOLERANCE)
        constants = [0.5 * (old + new) for old, new in zip(constants, solution, strict=True)]
    assert best is not None
    return best[1]


def training_error(recording: Recording, played: Replay, training: Sequence[int]) -> float:
    """Mean relative error of the time between first and last token, plus that of the time to the first one, weighted
    as in the fit."""
    total = 0.0
    modelled = played.modelled(recording.requests)
    for index in training:
        for weight, ours, theirs in _spans(modelled[index], recording.requests[index]):
            total += weight * min(1.0, abs(ours / theirs - 1.0))
    return total / len(training)


def _spans(ours: RecordedRequest, theirs: RecordedRequest) -> Iterator[tuple[float, float, float]]:
    yield FIRST_TOKEN_WEIGHT, ours.first_token_s - ours.scheduled_s, theirs.first_token_s - theirs.scheduled_s
    if theirs.output_tokens > 1:
        yield 1.0, ours.last_token_s - ours.first_token_s, theirs.last_token_s - theirs.first_token_s


def _rows(recording: Recording, played: Replay, training: Sequence[int]) -> Iterator[Row]:
    sums = [_Sums(steps) for steps in played.steps]
    modelled = played.modelled(recording.requests)
    for index in training:
        ours, theirs = modelled[index], recording.requests[index]
        steps = sums[played.rank_of[index]]
        first = steps.between(ours.scheduled_s, ours.first_token_s)
        yield Row(first, (theirs.first_token_s - theirs.scheduled_s) * 1e3, FIRST_TOKEN_WEIGHT)
        if theirs.output_tokens > 1:
            rest = steps.between(ours.first_token_s, ours.last_token_s)
            yield Row(rest, (theirs.last_token_s - theirs.first_token_s) * 1e3)


class _Sums:
    """Running sums of what each step's cost depends on, in the order of `Constants`, in milliseconds per unit."""

    def __init__(self, steps: Sequence[StepResult]) -> None:
        self._ends_s = [step.started_s + step.duration_s for step in steps]
        none: tuple[float, ...] = (0.0,) * 5
        self._totals = list(accumulate(map(_features, steps), _add, initial=none))

    def between(self, after_s: float, until_s: float) -> list[float]:
        """Sums over the steps that end within (`after_s`, `until_s`]."""
        first, last = (self._totals[bisect_right(self._ends_s, time_s + _EDGE_S)] for time_s in (after_s, until_s))
        return [b - a for a, b in zip(first, last, strict=True)]


def _features(step: StepResult) -> tuple[float, ...]:
    pairs, context = step.attended_pairs * 1e-6, step.decode_context_tokens * 1e-6
    return 1.0, step.prefill_tokens * 1e-3, pairs, float(step.decodes), context


def _add(left: tuple[float, ...], right: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(left, right, strict=True))

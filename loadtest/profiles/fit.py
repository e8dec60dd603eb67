"""Fit a profile's step costs to a recording's timestamps.

A recording has the time when each request was first scheduled, and the times of its first and last token. Whole steps
lie between them, and the engine model computes the work of each step. So the sum of their costs, which is linear in the
profile's constants, equals the observed time. Least squares give the constants. A replay with the new constants gives
new steps, and the next round starts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from scipy.optimize import nnls

from backends.engine.engine import StepResult
from backends.engine.profile import DecodeCost, PrefillCost, Profile
from loadtest.profiles.recording import RecordedRequest, Recording
from loadtest.profiles.replay import Replay, replay

ROUNDS = 12
TOLERANCE = 0.02
"""Rows with a higher relative error count less, because the recordings do not say which prompts were partly cached."""
FIRST_TOKEN_WEIGHT = 0.2
"""Weight of the time to the first token, in which the model may be wrong by one of two or three steps.

From the first to the last token there are hundreds of steps.
"""
_EDGE_S = 1e-9
_REWEIGHTINGS = 10


@dataclass(frozen=True, slots=True)
class Row:
    """One observation: ``sum(features * parameters)`` should be `observed`; errors are relative to it."""

    features: Sequence[float]
    observed: float
    weight: float = 1.0


def fit_relative(rows: Sequence[Row], tolerance: float) -> list[float]:
    """Return parameters of at least 0 that fit `rows` best in relative error.

    An error within `tolerance` (0.02 = 2 %) counts squared, a larger one in proportion to its size. This is Huber's
    loss, by iteratively reweighted least squares. So a few rows with a cause of their own do not distort the fit.
    """
    weights = [row.weight / row.observed**2 for row in rows]
    parameters = _solve_not_negative(rows, weights)
    for _ in range(_REWEIGHTINGS):
        damped = [
            weight * min(1.0, tolerance / max(relative_error(row, parameters), 1e-12))
            for row, weight in zip(rows, weights, strict=True)
        ]
        parameters = _solve_not_negative(rows, damped)
    return parameters


def relative_error(row: Row, parameters: Sequence[float]) -> float:
    """Return the absolute error of one row, as a share of the observed value."""
    return abs(sum(f * p for f, p in zip(row.features, parameters, strict=True)) / row.observed - 1.0)


def _solve_not_negative(rows: Sequence[Row], weights: Sequence[float]) -> list[float]:
    """Return the weighted least-squares solution without negative parameters; an unused parameter is 0."""
    scale = np.sqrt(np.array(weights))
    matrix = np.array([row.features for row in rows]) * scale[:, None]
    # Features differ by many orders of magnitude (steps, tokens, tokens squared), but `nnls` has one tolerance for all.
    norms = np.linalg.norm(matrix, axis=0)
    norms[norms == 0.0] = 1.0
    solution, _ = nnls(matrix / norms, np.array([row.observed for row in rows]) * scale)
    return [float(value) for value in solution / norms]


def fit(recording: Recording, start: Profile, training: Sequence[int]) -> Profile:
    """Return `start` with costs fitted to the requests at the indices in `training`; other requests' times are not
    read.

    Each round moves half way to its solution. The result is the round with the smallest error on the training requests.
    """
    constants = [start.decode.a_ms, start.prefill.b_us, start.prefill.d_ns, start.decode.b_ms, start.decode.k_ns]
    best: tuple[float, Profile] | None = None
    for _ in range(ROUNDS):
        a_ms, b_us, d_ns, b_ms, k_ns = constants
        # One fixed part for prefill and decode, since both read the weights once.
        profile = replace(start, prefill=PrefillCost(a_ms, b_us, d_ns), decode=DecodeCost(a_ms, b_ms, k_ns))
        played = replay(recording, profile)
        error = training_error(recording, played, training)
        if best is None or error < best[0]:
            best = error, profile
        solution = fit_relative(list(_rows(recording, played, training)), TOLERANCE)
        constants = [0.5 * (old + new) for old, new in zip(constants, solution, strict=True)]
    assert best is not None
    return best[1]


def training_error(recording: Recording, played: Replay, training: Sequence[int]) -> float:
    """Return the mean relative error of the time between first and last token, plus the weighted one of the first
    token.

    The weight is `FIRST_TOKEN_WEIGHT`, as in the fit.
    """
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
    steps = _Sums(played.steps)
    modelled = played.modelled(recording.requests)
    for index in training:
        ours, theirs = modelled[index], recording.requests[index]
        first = steps.between(ours.scheduled_s, ours.first_token_s)
        yield Row(first, (theirs.first_token_s - theirs.scheduled_s) * 1e3, FIRST_TOKEN_WEIGHT)
        if theirs.output_tokens > 1:
            rest = steps.between(ours.first_token_s, ours.last_token_s)
            yield Row(rest, (theirs.last_token_s - theirs.first_token_s) * 1e3)


class _Sums:
    """Running sums of the quantities that determine a step's cost.

    They are in the order of the constants of `fit`, in milliseconds per unit.
    """

    def __init__(self, steps: Sequence[StepResult]) -> None:
        self._ends_s = [step.started_s + step.duration_s for step in steps]
        none: tuple[float, ...] = (0.0,) * 5
        self._totals = list(accumulate(map(_features, steps), _add, initial=none))

    def between(self, after_s: float, until_s: float) -> list[float]:
        """Return the sums over the steps that end within (`after_s`, `until_s`]."""
        first, last = (self._totals[bisect_right(self._ends_s, time_s + _EDGE_S)] for time_s in (after_s, until_s))
        return [b - a for a, b in zip(first, last, strict=True)]


def _features(step: StepResult) -> tuple[float, ...]:
    pairs, context = step.attended_pairs * 1e-6, step.decode_context_tokens * 1e-6
    return 1.0, step.prefill_tokens * 1e-3, pairs, float(step.decodes), context


def _add(left: tuple[float, ...], right: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(left, right, strict=True))

"""Fit a profile's step costs to a recording's timestamps.

A recording has the time when each request was first scheduled, and the times of its first and last token. Whole steps
lie between them, and the engine model computes the work of each step. So the sum of their costs, which is linear in the
profile's constants, equals the observed time. Least squares give the constants. A replay with the new constants gives
new steps, and the next round starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from backends.engine.engine import StepResult
from backends.engine.profile import DecodeCost, PrefillCost, Profile
from loadtest.calibrate.least_squares import Floats, fit_relative
from loadtest.calibrate.recordings.recording import Recording
from loadtest.calibrate.recordings.replay import Replay, replay

ROUNDS = 12
TOLERANCE = 0.02
"""Rows with a higher relative error count less, because the recordings do not say which prompts were partly cached."""
FIRST_TOKEN_WEIGHT = 0.2
"""Weight of the time to the first token, in which the model may be wrong by one of two or three steps.

From the first to the last token there are hundreds of steps.
"""
_EDGE_S = 1e-9


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
        solution = fit_relative(*_rows(recording, played, training), TOLERANCE)
        constants = [0.5 * (old + float(new)) for old, new in zip(constants, solution, strict=True)]
    assert best is not None
    return best[1]


def training_error(recording: Recording, played: Replay, training: Sequence[int]) -> float:
    """Return the mean relative error of the time between first and last token, plus the weighted one of the first
    token.

    The weight is `FIRST_TOKEN_WEIGHT`, as in the fit.
    """
    total = 0.0
    for weight, (from_s, until_s), observed_s in _spans(recording, played, training):
        total += weight * min(1.0, abs((until_s - from_s) / observed_s - 1.0))
    return total / len(training)


def _spans(
    recording: Recording, played: Replay, training: Sequence[int]
) -> Iterator[tuple[float, tuple[float, float], float]]:
    """Yield (weight, begin and end in the model, recorded length) of whole steps of each request."""
    for ours, theirs in ((played.requests[index], recording.requests[index]) for index in training):
        yield (
            FIRST_TOKEN_WEIGHT,
            (ours.scheduled_s, ours.first_token_s),
            theirs.first_token_s - theirs.scheduled_s,
        )
        if theirs.output_tokens > 1:
            yield 1.0, (ours.first_token_s, ours.last_token_s), theirs.last_token_s - theirs.first_token_s


def _rows(recording: Recording, played: Replay, training: Sequence[int]) -> tuple[Floats, Floats, Floats]:
    """Return the sums of steps' features within each span, in the order of the constants of `fit`, the recorded
    milliseconds, and the weights."""
    weights, spans, observed_s = zip(*_spans(recording, played, training), strict=True)
    ends_s = [step.started_s + step.duration_s for step in played.steps]
    totals = np.vstack([np.zeros(5), np.cumsum([_features(step) for step in played.steps], axis=0)])
    edges = np.searchsorted(ends_s, np.array(spans) + _EDGE_S, side="right")
    return totals[edges[:, 1]] - totals[edges[:, 0]], np.array(observed_s) * 1e3, np.array(weights)


def _features(step: StepResult) -> tuple[float, ...]:
    """Return the quantities that determine a step's cost, in milliseconds per unit of the constants."""
    pairs, context = step.attended_pairs * 1e-6, step.decode_context_tokens * 1e-6
    return 1.0, step.prefill_tokens * 1e-3, pairs, float(step.decodes), context

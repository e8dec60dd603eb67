"""Searches over runs: the highest rate whose goodput reaches the goal, and the knee of throughput over concurrency.

The rate doubles until it fails, or halves until it holds, and is bisected from there. A run is resolved when Wilson's
interval of its share lies on one side of the goal; one that is not is run again with more requests. An overloaded run
has failed, whatever its share.

The knee is that of GuideLLM: two lines that meet, fitted to the points by least squares, are accepted if the second is
flat, explains what one line does not, and begins near the highest throughput.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from loadtest.report.verdict import ShareInterval, wilson

TOLERANCE = 0.1
"""Relative distance between the rates that hold and fail, at which the search ends."""
MOST_RUNS = 15
MOST_AGAIN = 2
"""A run that is not resolved is repeated this often at most, each time with twice the requests."""
LEAST_POINTS = 5
FLAT, EXPLAINED, NEAR_PEAK = 0.25, 0.5, 0.85


class Stop(StrEnum):
    CONVERGED = "the rates that hold and fail are within 10 %"
    NEVER_HELD = "the goal is not met at the lowest rate tried"
    NEVER_FAILED = "the goal is met at the highest rate tried"
    TOO_MANY_RUNS = "the number of runs is at its limit"
    VOID = "the client is too slow for a higher rate"


@dataclass(frozen=True, slots=True)
class Tried:
    """One run at a rate. `void`: the client was too slow."""

    rate: float
    met: int
    total: int
    saturated: bool = False
    void: bool = False

    @property
    def interval(self) -> ShareInterval:
        return wilson(self.met, self.total)

    def holds(self, attainment: float) -> bool:
        return not self.saturated and self.interval.share >= attainment

    def resolved(self, attainment: float) -> bool:
        return self.saturated or self.interval.side(attainment) is not None


@dataclass(frozen=True, slots=True)
class HighestRate:
    """The result: runs in order, the highest rate that held and the lowest that failed, None if there is none."""

    runs: tuple[Tried, ...]
    holds: float | None
    fails: float | None
    resolved: bool
    stop: Stop


def highest_rate(
    run: Callable[[float, int], Tried], start: float, attainment: float, lowest: float, highest: float
) -> HighestRate:
    """Search from `start` within [lowest, highest]; `run` gets a rate and a factor on its number of requests."""
    runs: list[Tried] = []
    holds: float | None = None
    fails: float | None = None
    resolved = True

    def result(stop: Stop) -> HighestRate:
        return HighestRate(tuple(runs), holds, fails, resolved, stop)

    rate = start
    while len(runs) < MOST_RUNS:
        for again in range(MOST_AGAIN + 1):
            tried = run(rate, 2**again)
            runs.append(tried)
            if tried.void or tried.resolved(attainment):
                break
        if tried.void:
            return result(Stop.VOID)
        resolved = resolved and tried.resolved(attainment)
        if tried.holds(attainment):
            holds = rate
            if rate >= highest:
                return result(Stop.NEVER_FAILED)
        else:
            fails = rate
            if rate <= lowest:
                return result(Stop.NEVER_HELD)
        if holds is not None and fails is not None and fails <= holds * (1.0 + TOLERANCE):
            return result(Stop.CONVERGED)
        if holds is None:
            rate = max(lowest, rate / 2.0)
        elif fails is None:
            rate = min(highest, rate * 2.0)
        else:
            rate = (holds * fails) ** 0.5
    return result(Stop.TOO_MANY_RUNS)


@dataclass(frozen=True, slots=True)
class Knee:
    """`at` is the concurrency where throughput stops to grow; `reached` is the first one tried from there on."""

    at: float
    reached: float


def knee(points: Sequence[tuple[float, float]]) -> Knee | None:
    """Return the knee of (concurrency, throughput); None if there is none, or for fewer than `LEAST_POINTS`."""
    points = sorted(points)
    xs, ys = (np.array(values, dtype=float) for values in zip(*points, strict=True))
    if len(points) < LEAST_POINTS or ys.max() <= 0.0:
        return None
    xs, ys = xs / xs.max(), ys / ys.max()
    one = _fit(xs, ys, None)
    breaks = [_fit(xs, ys, at) for at in np.linspace(xs[1], xs[-2], 200)]
    best = min(breaks, key=lambda fit: fit.error)
    rising, tail = best.slopes
    explains = one.error > 0.0 and 1.0 - best.error / one.error >= EXPLAINED
    if not (rising > 0.0 and tail <= FLAT * rising and explains and best.height >= NEAR_PEAK):
        return None
    at = best.at * max(x for x, _ in points)
    return Knee(at, next((x for x, _ in points if x >= at * (1.0 - 1e-9)), points[-1][0]))


@dataclass(frozen=True, slots=True)
class _Fit:
    at: float
    error: float
    slopes: tuple[float, float]
    height: float


def _fit(xs: Any, ys: Any, at: float | None) -> _Fit:
    """Fit one line, or two that meet at `at`."""
    columns = [np.ones_like(xs), xs, *([] if at is None else [np.maximum(0.0, xs - at)])]
    matrix = np.stack(columns, axis=1)
    found, *_ = np.linalg.lstsq(matrix, ys, rcond=None)
    error = float(((matrix @ found - ys) ** 2).sum())
    bend = float(found[2]) if at is not None else 0.0
    place = 0.0 if at is None else at
    return _Fit(place, error, (float(found[1]), float(found[1]) + bend), float(found[0] + found[1] * place))

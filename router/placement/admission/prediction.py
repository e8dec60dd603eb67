"""How fast a queue drains, and whether a request would wait too long."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from random import Random

from router.placement.learning.decaying import DecayingMean
from router.placement.learning.prefill_estimate import ENOUGH

WINDOW_S = 10.0
"""How far the drain rate looks back."""
SEEN_S = 1.0
"""Seconds of backlog from which the measured rate counts."""
_FORGETTING = 0.98
_SHORTEST_S = 0.1
"""Shorter predictions say nothing about the rate."""
_FARTHEST = 2.0
"""The largest factor by which one wait differs from its prediction."""
LONGEST_RETRY_S = 30.0
_SHORTEST_RETRY_S = 1.0
_JITTER = 0.25
"""Share by which Retry-After varies, as in openai-python, so that clients do not return at the same time."""


class DrainRate:
    """Charged seconds that were dispatched per second of backlog."""

    __slots__ = ("_at_s", "_backlog_s", "_worked_s")

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._worked_s = 0.0
        self._backlog_s = 0.0

    def passed(self, now_s: float, *, backlog: bool) -> None:
        """Note that time has passed up to now, with or without waiting requests."""
        if self._at_s is not None and backlog and now_s > self._at_s:
            passed_s = now_s - self._at_s
            kept = exp(-passed_s / WINDOW_S)
            self._worked_s *= kept
            self._backlog_s = self._backlog_s * kept + passed_s
        self._at_s = now_s

    def worked(self, seconds: float) -> None:
        self._worked_s += seconds

    def taken_back(self, seconds: float) -> None:
        self._worked_s = max(0.0, self._worked_s - seconds)

    @property
    def per_s(self) -> float | None:
        """The rate; None until there has been enough backlog to measure it."""
        return self._worked_s / self._backlog_s if self._backlog_s >= SEEN_S and self._worked_s else None


class Bias:
    """How much longer requests wait than predicted, as a factor near 1."""

    __slots__ = ("_mean",)

    def __init__(self) -> None:
        self._mean = DecayingMean(_FORGETTING)

    def observe(self, first_token_s: float, waited_s: float) -> None:
        if first_token_s >= _SHORTEST_S:
            self._mean.observe(min(_FARTHEST, max(1.0 / _FARTHEST, waited_s / first_token_s)))

    @property
    def factor(self) -> float:
        return self._mean.value if self._mean.weight >= ENOUGH else 1.0


@dataclass(frozen=True, slots=True)
class EarlyRefusal:
    """Why a request is refused. `wait_s` is the predicted or past wait, `retry_after_s` None where nothing is known."""

    reason: str
    wait_s: float
    retry_after_s: float | None


def retry_after_s(excess_s: float, rng: Random) -> float:
    """Return when to come again, if the queue is `excess_s` too long: capped, and with jitter."""
    wait_s = min(LONGEST_RETRY_S, max(_SHORTEST_RETRY_S, excess_s))
    return min(LONGEST_RETRY_S, wait_s * rng.uniform(1.0 - _JITTER, 1.0 + _JITTER))

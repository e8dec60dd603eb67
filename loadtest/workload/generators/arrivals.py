"""Start times of sessions: a Poisson process, or one whose rate switches between bursts and quiet times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from random import Random


@dataclass(frozen=True, slots=True)
class Bursts:
    """In bursts, sessions come `ratio` times as fast as on average. Bursts last `length_s` on average and take `share`
    of the time.

    The lengths of bursts and of the quiet times between them are exponential: a Markov-modulated Poisson process of
    two states. Bursts do not change the mean rate, so `ratio * share` is at most 1.
    """

    ratio: float
    share: float
    length_s: float

    @property
    def quiet_ratio(self) -> float:
        """The rate between bursts, as a multiple of the mean rate."""
        return (1.0 - self.ratio * self.share) / (1.0 - self.share)

    @property
    def quiet_s(self) -> float:
        """Mean time between two bursts, in seconds."""
        return self.length_s * (1.0 - self.share) / self.share


def arrivals(rng: Random, rate_per_s: float, bursts: Bursts, begin_s: float, end_s: float) -> Iterator[float]:
    """Yield times in [begin_s, end_s), in order, `rate_per_s` of them per second in the long run."""
    for from_s, until_s, ratio in _phases(rng, bursts, begin_s, end_s):
        yield from _poisson(rng, rate_per_s * ratio, from_s, min(until_s, end_s))


def _phases(rng: Random, bursts: Bursts, begin_s: float, end_s: float) -> Iterator[tuple[float, float, float]]:
    """Yield (from, until, rate as a multiple of the mean rate), in order; shares of time decide the first."""
    if bursts.ratio == 1.0:
        yield begin_s, inf, 1.0
        return
    bursting = rng.random() < bursts.share
    at_s = begin_s
    while at_s < end_s:
        until_s = at_s + rng.expovariate(1.0 / (bursts.length_s if bursting else bursts.quiet_s))
        yield at_s, until_s, bursts.ratio if bursting else bursts.quiet_ratio
        at_s, bursting = until_s, not bursting


def _poisson(rng: Random, rate_per_s: float, at_s: float, end_s: float) -> Iterator[float]:
    while rate_per_s > 0.0 and (at_s := at_s + rng.expovariate(rate_per_s)) < end_s:
        yield at_s

"""Gateways in front of one fleet: the cases that are compared, and the figures of a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """Some gateways. With `events` their cache views are exact, otherwise approximate; with `redis` they share."""

    gateways: int
    events: bool
    redis: bool

    @property
    def alone(self) -> Case:
        """The case of one gateway that it is compared with."""
        return Case(1, self.events, False)

    @property
    def views(self) -> str:
        """The kind of cache views."""
        return "exact" if self.events else "approximate"


def cases(counts: Sequence[int]) -> list[Case]:
    """Return one gateway and each larger number of `counts`, with both kinds of views, without Redis and with it."""
    listed = []
    for events in (True, False):
        listed.append(Case(1, events, False))
        listed += [Case(count, events, redis) for redis in (False, True) for count in counts if count > 1]
    return listed


@dataclass(frozen=True, slots=True)
class Share:
    """Figures of one run.

    `cached` is cached over prompt tokens. `imbalance` is the busiest worker's prefill tokens over the mean.
    """

    cached: float
    imbalance: float
    ttft_mean_ms: float
    requests: int
    failed: int = 0


def share(
    calls: Sequence[tuple[str, int, int]], workers: Sequence[str], ttfts_s: Sequence[float], failed: int = 0
) -> Share:
    """Return the figures of the answered calls, each given as its worker, its prompt tokens and its cached tokens."""
    prefilled = dict.fromkeys(workers, 0)
    for worker, prompt, cached in calls:
        prefilled[worker] += prompt - cached
    return Share(
        cached=sum(cached for _, _, cached in calls) / max(1, sum(prompt for _, prompt, _ in calls)),
        imbalance=max(prefilled.values()) / max(1.0, statistics.mean(prefilled.values())),
        ttft_mean_ms=statistics.mean(ttfts_s) * 1e3 if ttfts_s else 0.0,
        requests=len(calls),
        failed=failed,
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some values, the least and the greatest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def text(self, form: str) -> str:
        """Return it in words, each value in `form`."""
        median, low, high = (f"{value:{form}}" for value in (self.median, self.low, self.high))
        return median if low == high else f"{median} ({low} to {high})"


@dataclass(frozen=True, slots=True)
class Played:
    """A case and its runs, one per seed or round, in the same order for each case of a comparison."""

    case: Case
    runs: tuple[Share, ...]

    def cached(self) -> Spread:
        """Return the cached share."""
        return Spread.of([run.cached for run in self.runs])

    def imbalance(self) -> Spread:
        """Return the imbalance."""
        return Spread.of([run.imbalance for run in self.runs])

    def lost(self, one: Played) -> Spread:
        """Return how much of the cached share this case loses against `one`, paired run by run."""
        pairs = zip(one.runs, self.runs, strict=True)
        return Spread.of([first.cached - second.cached for first, second in pairs])

    def unevenness(self, one: Played) -> float:
        """Return the median imbalance over that of `one`."""
        return self.imbalance().median / one.imbalance().median

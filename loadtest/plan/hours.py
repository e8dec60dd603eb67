"""The workers that each hour of a trace needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from loadtest.plan.search import Search, least
from loadtest.plan.traffic import Hour


@dataclass(frozen=True, slots=True)
class HourNeed:
    """The workers that an hour needs, None if more than there may be.

    An hour that was not simulated lies, by its work, between two that need as many.
    """

    hour: Hour
    workers: int | None
    simulated: bool


def by_hour(
    hours: Sequence[Hour], workers: int, search: Callable[[Mapping[int, Search]], Mapping[int, int | None]]
) -> list[HourNeed]:
    """Return the workers, at most this many, that each hour needs; 0 without calls.

    An hour of more work never needs fewer. So hours are searched by bisection in the order of their work. `search` runs
    searches side by side, one for each hour by its place in `hours`.
    """
    rates = [one.sample.work_s / one.sample.length_s for one in hours]
    order = sorted((place for place, one in enumerate(hours) if one.sample.calls), key=rates.__getitem__)
    needs, spans = {-1: 1, len(order): workers + 1}, [(-1, len(order))]
    while spans := [(low, high) for low, high in spans if high - low > 1 and needs[low] < needs[high]]:
        middles = {(low + high) // 2: (low, high) for low, high in spans}
        tried = {
            order[at]: least(ceil(workers * rates[order[at]] / max(rates)), needs[high] - 1, needs[low] - 1)
            for at, (low, high) in middles.items()
        }
        found = search(tried)
        for at, (_, high) in middles.items():
            needs[at] = found[order[at]] or needs[high]
        spans = [half for at, (low, high) in middles.items() for half in ((low, at), (at, high))]
    return [
        _need(hour, order.index(place) if place in order else None, needs, workers) for place, hour in enumerate(hours)
    ]


def _need(hour: Hour, at: int | None, needs: Mapping[int, int], workers: int) -> HourNeed:
    if at is None:
        return HourNeed(hour, 0, simulated=False)
    needed = needs[max(known for known in needs if known <= at)]
    return HourNeed(hour, needed if needed <= workers else None, simulated=at in needs)


def mean_workers(hours: Sequence[HourNeed], most: int) -> float:
    """Return the hours' needs, weighted by their lengths; `most` for an hour that needs more."""
    needs = [(one.hour.length_s, most if one.workers is None else one.workers) for one in hours]
    return sum(length_s * needed for length_s, needed in needs) / sum(length_s for length_s, _ in needs)

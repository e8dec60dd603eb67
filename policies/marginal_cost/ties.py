"""Which of the candidates that cost about the same is used."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.kv_space import columns_fit, fits
from policies.lazy_terms import CostOrder, InOrder
from policies.least_recently_used import LeastRecentlyUsed
from policies.view import Column, FleetView, WorkerId, WorkerView


class Ranked(msgspec.Struct, frozen=True):
    """All candidates by cost, the choice first, and the number of candidates that count as equal to it.

    `fitting` of these have space for the prompt in their KV cache; 0 if none has, or if there is one candidate only.
    """

    equals: int
    fitting: int
    ids: Sequence[WorkerId]
    costs_s: Sequence[float]


def rank_views(workers: Sequence[WorkerView], costs_s: Sequence[float], last_used: LeastRecentlyUsed) -> Ranked:
    """Rank views. Equal costs are rare, and sorting numbers is much cheaper than sorting tuples."""

    def turn(place: int) -> tuple[int, float]:
        view = workers[place]
        return view.running_requests, last_used.last(view.id)

    ranked = list(range(len(workers)))
    if len(set(costs_s)) < len(costs_s):
        ranked.sort(key=turn)
    ranked.sort(key=costs_s.__getitem__)
    equals = _equals(workers, costs_s, ranked)
    fitting = [place for place in equals if fits(workers[place])] if len(equals) > 1 else []
    chosen = min(fitting or equals, key=turn)
    if chosen != ranked[0]:
        ranked.remove(chosen)
        ranked.insert(0, chosen)
    ids, costs = tuple([workers[place].id for place in ranked]), tuple([costs_s[place] for place in ranked])
    return Ranked(len(equals), len(fitting), ids, costs)


def _equals(workers: Sequence[WorkerView], costs_s: Sequence[float], ranked: Sequence[int]) -> list[int]:
    """Return the places in `ranked` whose cost counts as equal to that of the first place, which is included."""
    cheapest, cheapest_s = workers[ranked[0]], costs_s[ranked[0]]
    uncached_tokens, error_s = cheapest.uncached_tokens, cheapest.error_s
    return [
        place
        for place in ranked
        if workers[place].uncached_tokens <= uncached_tokens
        and costs_s[place] - cheapest_s <= workers[place].error_s + error_s
    ]


def rank_columns(fleet: FleetView, costs_s: Column, last_used: LeastRecentlyUsed) -> Ranked:
    """Do the same with arrays. Sort nothing: the choice needs the cheapest worker and its equals only."""
    cheapest = _first(fleet, np.flatnonzero(costs_s == costs_s.min()), costs_s, last_used)
    uncached_tokens, error_s = fleet.uncached_tokens, fleet.error_s
    equals = np.flatnonzero(
        (uncached_tokens <= uncached_tokens[cheapest]) & (costs_s - costs_s[cheapest] <= error_s + error_s[cheapest])
    )
    chosen, fit = cheapest, 0
    if len(equals) > 1:
        fitting = equals[columns_fit(fleet)[equals]]
        fit = len(fitting)
        chosen = _first(fleet, fitting if fit else equals, costs_s, last_used)
    order = CostOrder(costs_s, fleet.running_requests, chosen)
    return Ranked(len(equals), fit, InOrder(order, fleet.ids.__getitem__), InOrder(order, costs_s.item))


def _first(fleet: FleetView, places: NDArray[np.int64], costs_s: Column, last_used: LeastRecentlyUsed) -> int:
    if len(places) == 1:
        return int(places[0])
    running = fleet.running_requests[places]
    fewest: list[int] = places[running == running.min()].tolist()
    if len(fewest) == 1:
        return fewest[0]
    ids, last = fleet.ids, last_used.last
    return min(fewest, key=lambda place: (last(ids[place]), costs_s[place]))

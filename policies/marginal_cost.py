"""The default policy: place each request where it adds the least delay, in seconds."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import log, sqrt
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from policies.affinity_externality import AffinityExternality
from policies.kv_space import columns_fit, fits
from policies.lazy_terms import CostOrder, LazyCosts, LazyRanking, LazyTerms
from policies.least_recently_used import LeastRecentlyUsed
from policies.params import Params
from policies.running_prefixes import RunningPrefixes
from policies.view import Column, Decision, FleetView, LifecycleEvent, RequestView, WorkerId, WorkerView


class MarginalCostParams(Params, frozen=True):
    """Preferences only. Facts about model and hardware are learned."""

    stream_weight: Annotated[
        float,
        Meta(ge=0, description="Weight of a second of slower streaming; one before the first token weighs 1."),
    ] = 0.1
    affinity_externality: Annotated[
        bool,
        Meta(description="Price the delay of sessions that will return to a worker during a prefill there."),
    ] = True


class Prices(NamedTuple):
    """Prices of one decision by place, beside the terms that a `WorkerView` holds. Empty ones are 0 everywhere."""

    weight: float
    hot_prefix_s: Mapping[int, float]
    prefill_lane_s: Sequence[float] | Column
    affinity_externality_s: Sequence[float] | Column


class _Ranked(NamedTuple):
    """The place of the choice, the number of candidates that count as equal to it, and all of them by cost."""

    chosen: int
    equals: int
    ids: Sequence[WorkerId]
    costs_s: Sequence[float]


class MarginalCost:
    """Least cost in seconds: queue wait, KV wait, the prefill times 1 / (1 - utilisation), and what the request costs
    others. Ties go to the fewest running requests, then to the worker that was used least recently.

    The cost of a worker is the sum of these terms:

    * `queue_wait_s`, `kv_wait_s` and `prefill_s` predict the request's own time to first token. The prefill counts the
      uncached tokens. The KV wait is above 0 where running requests hold too much of the KV cache
      (`router.placement.kv_occupancy`).
    * `prefill_externality_s` is what the prefill costs the requests that come next. For Poisson arrivals, work added
      to an M/G/1 queue delays later requests in proportion to arrival rate, work and wait, over 1 - utilisation (the
      first step of policy iteration, Krishnan 1990). The rule uses the cheap form: the prefill times 1 / (1 -
      utilisation). So an idle fleet is ranked by prefill work, and near saturation cached tokens count more and more.
    * `decode_externality_s` is the time by which this request's decode and the running streams lengthen each other.
      Each context token adds a learned time to every decode step (`router.placement.decode_step_time`). These seconds
      are spread over hundreds of tokens, so they have the weight `stream_weight`. Services allow an answer of some
      hundred tokens about ten times the time of its first token (MLPerf for an 8B model: 2 s, and 100 ms for each
      token).
    * `hot_prefix_s` is a price on workers where many running requests share this prefix; see below.
    * `prefill_lane_s` is the price by which `lanes` keep long prefills on workers of their own, while that saves more
      delay than it costs. Workers with the label `lane`, `prefill` or `decode`, are always inside or outside.
    * `affinity_externality_s` is the delay that the prefill causes to sessions that will return to the worker's cache
      (`policies.affinity_externality`). Utilisation separates busy workers from idle ones; among idle ones this term
      shows which will be needed soon.

    By default `hold` is around the rule, which keeps a long prompt back while its worker runs other prefills or has no
    KV space for it, and so are `lanes`.

    Two rules keep a hot prefix from piling up on the one worker that has it, while that worker's prefill queue is
    short and only its decodes are many:

    * Ties. Requests with one system prompt cost the same on every worker that has it cached, but queue wait and
      prefill are noisy estimates: the lowest estimate would attract all of them. Candidates count as equal when their
      costs differ by less than the sum of their standard errors and they leave no more tokens uncached than the
      cheapest one. Tokens are counted and not estimated, so noise never costs reuse. Among equals the fewest running
      requests win.
    * The hot-prefix price, 0 unless two conditions hold. First, the worker runs significantly more requests (B) than
      the least busy one (A): (B - A)^2 > z^2 (B + A), the test for two Poisson counts. It uses two standard deviations
      for two workers, and z^2 grows by 2 ln(N / 2) for N workers. Second, that many of its requests begin as this
      prompt does, up to the first block that the least busy worker lacks (or up to what is cached, where it lacks
      none). Only then will later requests use a copy, too.

    The price is the most that the other requests can cost this one: the share 1 - A / B of its decode time, if steps
    grew in proportion to the batch. While decode times are unknown, it is the cost of the dearest candidate. Where a
    copy of the prefix costs less, the copy is made. Once the least busy worker has the whole prefix, the price is at
    most the time that the cached tokens save. Otherwise one block that all long prompts of a service share would
    outweigh a queue. This is the spill of smg 1.13 and of consistent hashing with bounded loads, with a price in place
    of a threshold. A worker that is busy for other reasons has no such price: moving a conversation off it costs a
    prefill that no other request would use.
    """

    params_type: ClassVar[type[Params]] = MarginalCostParams
    prices_in_seconds: ClassVar[bool] = True
    wrapped: ClassVar[bool] = True
    terms: ClassVar[Mapping[str, str]] = {
        "queue_wait_s": "Time until the prefills queued before this prompt are done.",
        "kv_wait_s": "Time until the prompt fits in the KV cache beside the running requests.",
        "prefill_s": "Time to prefill the part of the prompt that is not cached.",
        "prefill_externality_s": "Delay that this prefill causes to requests that come next.",
        "decode_externality_s": "Delay that this request's decode causes to the streams on the worker, weighted.",
        "hot_prefix_s": "Penalty on a worker overloaded by requests that share this prompt's prefix.",
        "prefill_lane_s": "Price that keeps long prefills in the prefill lane and other requests out of it.",
        "affinity_externality_s": "Cost of this prefill to sessions that come back to the worker's cache.",
        "error_s": "Standard error of queue wait and prefill; workers whose costs differ by less count as equal.",
    }

    def __init__(self, params: MarginalCostParams, rng: random.Random) -> None:
        self._params = params
        self._last_used = LeastRecentlyUsed()
        self._running_prefixes = RunningPrefixes()
        self._affinity_externality = AffinityExternality() if params.affinity_externality else None

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Rank by cost, and put the best of the equal candidates first."""
        hot_prefix_s = hot_prefix_prices_s(request, fleet, self._running_prefixes)
        affinity_externality_s = (
            () if self._affinity_externality is None else self._affinity_externality.prices_s(fleet)
        )
        prices = Prices(self._params.stream_weight, hot_prefix_s, fleet.lane_price_s, affinity_externality_s)
        _, equals, ranked, costs_s = (
            self._by_row(fleet.workers, prices) if fleet.by_row else self._by_column(fleet, prices)
        )
        reason = "least added delay" if equals == 1 else f"least busy of {equals} with equal added delay"
        return Decision(
            ranked,
            reason,
            costs_s,
            "s" if fleet.learned else "tokens",
            LazyTerms(fleet, lambda place: _terms(fleet.worker(place), place, prices)),
        )

    def _by_row(self, workers: Sequence[WorkerView], prices: Prices) -> _Ranked:
        costs_s = _costs_s(workers, prices)
        ranked = self._ranked(workers, costs_s)
        cheapest = ranked[0]
        equals = _equals(workers, costs_s, ranked)
        chosen = min(
            [place for place in equals if fits(workers[place])] or equals, key=lambda place: self._turn(workers[place])
        )
        if chosen != cheapest:
            ranked.remove(chosen)
            ranked.insert(0, chosen)
        ids, costs = tuple([workers[place].id for place in ranked]), tuple([costs_s[place] for place in ranked])
        return _Ranked(chosen, len(equals), ids, costs)

    def _ranked(self, workers: Sequence[WorkerView], costs_s: Sequence[float]) -> list[int]:
        """Return the places in `workers` by cost, then by running requests, then by least recent use.

        Equal costs are rare, and sorting numbers is much cheaper than sorting tuples.
        """
        ranked = list(range(len(workers)))
        if len(set(costs_s)) < len(costs_s):
            ranked.sort(key=lambda place: self._turn(workers[place]))
        ranked.sort(key=costs_s.__getitem__)
        return ranked

    def _turn(self, view: WorkerView) -> tuple[int, int]:
        return view.running_requests, self._last_used.last(view.id)

    def _by_column(self, fleet: FleetView, prices: Prices) -> _Ranked:
        """Do the same with arrays. Sort nothing: the choice needs the cheapest worker and its equals only."""
        costs_s = _column_costs_s(fleet, prices)
        cheapest = self._first(fleet, np.flatnonzero(costs_s == costs_s.min()), costs_s)
        uncached_tokens, error_s = fleet.uncached_tokens, fleet.error_s
        equals = np.flatnonzero(
            (uncached_tokens <= uncached_tokens[cheapest])
            & (costs_s - costs_s[cheapest] <= error_s + error_s[cheapest])
        )
        chosen = cheapest
        if len(equals) > 1:
            fitting = equals[columns_fit(fleet)[equals]]
            chosen = self._first(fleet, fitting if len(fitting) else equals, costs_s)
        order = CostOrder(costs_s, fleet.running_requests, chosen)
        return _Ranked(chosen, len(equals), LazyRanking(fleet, order), LazyCosts(order))

    def _first(self, fleet: FleetView, places: NDArray[np.int64], costs_s: Column) -> int:
        """Return the place with the fewest running requests, then the least recently used, then the cheapest."""
        if len(places) == 1:
            return int(places[0])
        running = fleet.running_requests[places]
        fewest: list[int] = places[running == running.min()].tolist()
        if len(fewest) == 1:
            return fewest[0]
        ids, last = fleet.ids, self._last_used.last
        return min(fewest, key=lambda place: (last(ids[place]), costs_s[place]))

    def observe(self, event: LifecycleEvent) -> None:
        """Pass the event to every part that keeps state."""
        self._last_used.observe(event)
        self._running_prefixes.observe(event)
        if self._affinity_externality is not None:
            self._affinity_externality.observe(event)


def hot_prefix_prices_s(
    request: RequestView, fleet: FleetView, running_prefixes: RunningPrefixes
) -> Mapping[int, float]:
    """Return the hot-prefix price of each worker that has one, by place."""
    if fleet.by_row:
        running = [view.running_requests for view in fleet.workers]
        least = min(running)
        usual = _usual(least, len(running))
        busier = [place for place, requests in enumerate(running) if requests > usual]
    else:
        column = fleet.running_requests
        least = int(column.min())
        usual = _usual(least, len(column))
        busier = np.flatnonzero(column > usual).tolist()
    if not busier:
        return {}
    lacked = _blocks(_calmest(fleet, least), request) + 1
    prices_s = {}
    for place in busier:
        view = fleet.worker(place)
        cached = _blocks(view, request)
        if running_prefixes.share(view.id, request, min(lacked, cached)) * view.running_requests > usual:
            hot_prefix_s = _hot_prefix_s(view, request, fleet, least)
            prices_s[place] = hot_prefix_s if cached >= lacked else min(hot_prefix_s, _saved_s(view))
    return prices_s


def _calmest(fleet: FleetView, least: int) -> WorkerView:
    """Return the worker with `least` running requests that has most of the prompt."""
    if fleet.by_row:
        return min([view for view in fleet.workers if view.running_requests == least], key=_uncached_tokens)
    places = np.flatnonzero(fleet.running_requests == least)
    return fleet.worker(int(places[fleet.uncached_tokens[places].argmin()]))


def _usual(least: int, workers: int) -> float:
    """Return the largest count that is not significantly above `least`, the lowest of `workers` counts."""
    z_squared = 4.0 + 2.0 * log(max(1.0, workers / 2))
    return least + 0.5 * (z_squared + sqrt(z_squared * (z_squared + 8.0 * least)))


def _hot_prefix_s(view: WorkerView, request: RequestView, fleet: FleetView, least: int) -> float:
    if request.decode_s and view.learned:
        return request.decode_s * (1.0 - least / view.running_requests)
    if fleet.by_row:
        return max([_first_token_s(other) for other in fleet.workers])
    return float(_column_first_token_s(fleet).max())


def _saved_s(view: WorkerView) -> float:
    """Return the time that the cached tokens save, at the pace of the uncached ones."""
    return view.prefill_s * view.cached_tokens / max(1, view.uncached_tokens)


def _blocks(view: WorkerView, request: RequestView) -> int:
    return view.cached_tokens // request.block_tokens if request.block_tokens else 0


def _costs_s(workers: Sequence[WorkerView], prices: Prices) -> list[float]:
    weight = prices.weight
    costs_s = [_first_token_s(view) + weight * view.decode_externality_s for view in workers]
    for place, price_s in prices.hot_prefix_s.items():
        costs_s[place] += price_s
    for prices_s in (prices.prefill_lane_s, prices.affinity_externality_s):
        if len(prices_s):
            costs_s = [cost_s + price_s for cost_s, price_s in zip(costs_s, prices_s, strict=True)]
    return costs_s


def _column_costs_s(fleet: FleetView, prices: Prices) -> Column:
    costs_s = _column_first_token_s(fleet) + prices.weight * fleet.decode_externality_s
    for place, price_s in prices.hot_prefix_s.items():
        costs_s[place] += price_s
    for prices_s in (prices.prefill_lane_s, prices.affinity_externality_s):
        if len(prices_s):
            costs_s += prices_s
    return costs_s


def _terms(view: WorkerView, place: int, prices: Prices) -> Mapping[str, float]:
    """Return the terms of one worker's cost.

    They refer to prices and not to the request, because the decision log would otherwise keep prompts in memory.
    """
    own_s, lane_s, affinity_s = view.prefill_s, prices.prefill_lane_s, prices.affinity_externality_s
    return {
        "queue_wait_s": view.queue_wait_s,
        "kv_wait_s": view.kv_wait_s,
        "prefill_s": own_s,
        "prefill_externality_s": own_s / (1.0 - view.utilisation) - own_s,
        "decode_externality_s": prices.weight * view.decode_externality_s,
        "hot_prefix_s": prices.hot_prefix_s.get(place, 0.0),
        "prefill_lane_s": float(lane_s[place]) if len(lane_s) else 0.0,
        "affinity_externality_s": float(affinity_s[place]) if len(affinity_s) else 0.0,
        "error_s": view.error_s,
    }


def _first_token_s(view: WorkerView) -> float:
    return view.queue_wait_s + view.kv_wait_s + view.prefill_s / (1.0 - view.utilisation)


def _column_first_token_s(fleet: FleetView) -> Column:
    return fleet.queue_wait_s + fleet.kv_wait_s + fleet.prefill_s / (1.0 - fleet.utilisation)


def _uncached_tokens(view: WorkerView) -> int:
    return view.uncached_tokens


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

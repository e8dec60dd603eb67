"""The default policy: place each request where it adds the least delay, in seconds."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from math import log, sqrt
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.admission_hold import KV_SPACE, AdmissionHold, fits
from policies.affinity_externality import AffinityExternality
from policies.lazy_terms import LazyTerms
from policies.least_recently_used import LeastRecentlyUsed
from policies.params import Params
from policies.prefill_lanes import PrefillLanes
from policies.running_prefixes import RunningPrefixes
from policies.view import Decision, FleetView, LifecycleEvent, RequestView, WorkerId, WorkerView


class MarginalCostParams(Params, frozen=True):
    """Preferences only. Facts about model and hardware are learned."""

    stream_weight: Annotated[
        float,
        Meta(ge=0, description="Weight of a second of slower streaming; one before the first token weighs 1."),
    ] = 0.1
    hold: Annotated[
        float,
        Meta(
            ge=0,
            description="Hold a long prompt while its worker runs other prefills, until it has waited this "
            "many times as long as its own prefill takes. 0: do not hold for prefills.",
        ),
    ] = 2.0
    hold_for_kv: Annotated[
        float,
        Meta(
            ge=0,
            description="Hold a long prompt until the KV cache of its worker has space for it, "
            "until it has waited this many times as long as its own prefill takes. 0: do not hold for KV space.",
        ),
    ] = 6.0
    prefill_lanes: Annotated[
        bool,
        Meta(description="Reserve some workers for long prefills while that reduces the total delay."),
    ] = True
    affinity_externality: Annotated[
        bool,
        Meta(description="Price the delay of sessions that will return to a worker during a prefill there."),
    ] = True


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
    * `prefill_lane_s` keeps long prefills on workers of their own, while that saves more delay than it costs
      (`policies.prefill_lanes`). Workers with the label `lane`, `prefill` or `decode`, are always inside or outside.
    * `affinity_externality_s` is the delay that the prefill causes to sessions that will return to the worker's cache
      (`policies.affinity_externality`). Utilisation separates busy workers from idle ones; among idle ones this term
      shows which will be needed soon.

    A long prompt can be held while its worker runs other prefills, or has no KV space for it
    (`policies.admission_hold`).

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
        self._admission_hold = AdmissionHold(params.hold, params.hold_for_kv)
        self._prefill_lanes = PrefillLanes(params.stream_weight) if params.prefill_lanes else None

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Rank by cost, and put the best of the equal candidates first."""
        workers = fleet.workers
        weight = self._params.stream_weight
        hot_prefix_s = hot_prefix_prices_s(request, fleet, self._running_prefixes)
        prefill_lane_s = {} if self._prefill_lanes is None else self._prefill_lanes.prices_s(request, fleet)
        affinity_externality_s = (
            {} if self._affinity_externality is None else self._affinity_externality.prices_s(fleet)
        )
        costs_s = _costs_s(workers, weight, (hot_prefix_s, prefill_lane_s, affinity_externality_s))
        ranked = self._ranked(workers, costs_s)
        cheapest = ranked[0]
        equals = _equals(workers, costs_s, ranked)
        chosen = min(
            [place for place in equals if fits(workers[place])] or equals, key=lambda place: self._turn(workers[place])
        )
        if chosen != cheapest:
            ranked.remove(chosen)
            ranked.insert(0, chosen)
        reason = "least added delay" if len(equals) == 1 else f"least busy of {len(equals)} with equal added delay"
        hold_s, awaited = self._admission_hold.hold(request, workers[chosen])
        return Decision(
            tuple([workers[place].id for place in ranked]),
            f"{reason}; holds for {awaited}" if awaited else reason,
            tuple([costs_s[place] for place in ranked]),
            "s" if workers[cheapest].learned else "tokens",
            LazyTerms(workers, _explain(weight, hot_prefix_s, prefill_lane_s, affinity_externality_s)),
            hold_s,
            awaited != KV_SPACE,
        )

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

    def observe(self, event: LifecycleEvent) -> None:
        """Pass the event to every part that keeps state."""
        self._last_used.observe(event)
        self._running_prefixes.observe(event)
        self._admission_hold.observe(event)
        if self._affinity_externality is not None:
            self._affinity_externality.observe(event)
        if self._prefill_lanes is not None:
            self._prefill_lanes.observe(event)

    def statistics(self) -> dict[str, object]:
        """Return the prefill lanes by model."""
        return {"prefill_lanes": {} if self._prefill_lanes is None else self._prefill_lanes.statistics()}


def hot_prefix_prices_s(
    request: RequestView, fleet: FleetView, running_prefixes: RunningPrefixes
) -> dict[WorkerId, float]:
    """Return the hot-prefix price of each worker that has one."""
    least = min([view.running_requests for view in fleet.workers])
    usual = _usual(least, len(fleet.workers))
    busier = [view for view in fleet.workers if view.running_requests > usual]
    if not busier:
        return {}
    calmest = min([view for view in fleet.workers if view.running_requests == least], key=_uncached_tokens)
    lacked = _blocks(calmest, request) + 1
    prices_s = {}
    for view in busier:
        cached = _blocks(view, request)
        if running_prefixes.share(view.id, request, min(lacked, cached)) * view.running_requests > usual:
            hot_prefix_s = _hot_prefix_s(view, request, fleet, least)
            prices_s[view.id] = hot_prefix_s if cached >= lacked else min(hot_prefix_s, _saved_s(view))
    return prices_s


def _usual(least: int, workers: int) -> float:
    """Return the largest count that is not significantly above `least`, the lowest of `workers` counts."""
    z_squared = 4.0 + 2.0 * log(max(1.0, workers / 2))
    return least + 0.5 * (z_squared + sqrt(z_squared * (z_squared + 8.0 * least)))


def _hot_prefix_s(view: WorkerView, request: RequestView, fleet: FleetView, least: int) -> float:
    if request.decode_s and view.learned:
        return request.decode_s * (1.0 - least / view.running_requests)
    return max([_first_token_s(other) for other in fleet.workers])


def _saved_s(view: WorkerView) -> float:
    """Return the time that the cached tokens save, at the pace of the uncached ones."""
    return view.prefill_s * view.cached_tokens / max(1, view.uncached_tokens)


def _blocks(view: WorkerView, request: RequestView) -> int:
    return view.cached_tokens // request.block_tokens if request.block_tokens else 0


def _costs_s(workers: Sequence[WorkerView], weight: float, prices_s: Sequence[Mapping[WorkerId, float]]) -> list[float]:
    """Return the cost of each worker; `prices_s` holds further prices of some of them."""
    costs_s = [_first_token_s(view) + weight * view.decode_externality_s for view in workers]
    for price_s in prices_s:
        if price_s:
            costs_s = [cost_s + price_s.get(view.id, 0.0) for cost_s, view in zip(costs_s, workers, strict=True)]
    return costs_s


def _explain(
    weight: float,
    hot_prefix_s: Mapping[WorkerId, float],
    prefill_lane_s: Mapping[WorkerId, float],
    affinity_externality_s: Mapping[WorkerId, float],
) -> Callable[[WorkerView], Mapping[str, float]]:
    """Return a function that computes a worker's terms.

    It refers to prices and not to the request, because the decision log would otherwise keep prompts in memory.
    """

    def terms(view: WorkerView) -> Mapping[str, float]:
        own_s = view.prefill_s
        return {
            "queue_wait_s": view.queue_wait_s,
            "kv_wait_s": view.kv_wait_s,
            "prefill_s": own_s,
            "prefill_externality_s": own_s / (1.0 - view.utilisation) - own_s,
            "decode_externality_s": weight * view.decode_externality_s,
            "hot_prefix_s": hot_prefix_s.get(view.id, 0.0),
            "prefill_lane_s": prefill_lane_s.get(view.id, 0.0),
            "affinity_externality_s": affinity_externality_s.get(view.id, 0.0),
            "error_s": view.error_s,
        }

    return terms


def _first_token_s(view: WorkerView) -> float:
    return view.queue_wait_s + view.kv_wait_s + view.prefill_s / (1.0 - view.utilisation)


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

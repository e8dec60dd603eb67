"""The default rule: place each request where it delays everyone least, in seconds."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from math import log, sqrt
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.admission_hold import ROOM, AdmissionHold, fits
from policies.affinity_externality import AffinityExternality
from policies.lazy_terms import LazyTerms
from policies.least_recently_used import LeastRecentlyUsed
from policies.params import Params
from policies.prefill_lanes import PrefillLanes
from policies.running_prefixes import RunningPrefixes
from policies.view import Decision, FleetView, LifecycleEvent, RequestView, WorkerId, WorkerView


class MarginalCostParams(Params, frozen=True):
    """A value judgement, and nothing about model or hardware: those are learned."""

    stream_weight: Annotated[
        float,
        Meta(ge=0, description="What a second of slower streaming counts, against one of waiting for a first token."),
    ] = 0.1
    hold: Annotated[
        float,
        Meta(
            ge=0,
            description="A prompt may wait in the gateway, for a worker that is prefilling, until it has waited this "
            "many times as long as its own prefill will take. 0: it does not wait for prefills.",
        ),
    ] = 2.0
    hold_for_kv: Annotated[
        float,
        Meta(
            ge=0,
            description="A prompt may wait in the gateway, for room in the KV cache of the worker it would go to, "
            "until it has waited this many times as long as its own prefill will take. 0: it does not wait for room.",
        ),
    ] = 6.0
    prefill_lanes: Annotated[
        bool,
        Meta(description="Keep long prefills and streams apart, on workers of their own, while that is cheaper."),
    ] = True
    affinity_externality: Annotated[
        bool,
        Meta(description="Keep prefills off workers that others will have to come back to meanwhile."),
    ] = True


class MarginalCost:
    """Least ``C = v + r + s / (1 - rho) + w * j + crowd + lane + returning``; ties by running requests, then in turn.

    v is the wait for the prefills before this prompt, r the wait for room in the KV cache where running requests hold
    too much of it (see `router.placement.kv_occupancy`), s the time its uncached tokens take: together the request's
    own time to first token. Prefill work also delays whoever comes next, and the more so the busier the worker is: for
    Poisson arrivals at rate lambda, s seconds of work in an M/G/1 queue delay later ones by about lambda * s * v / (1
    - rho) (the first step of policy iteration, Krishnan 1990), of which the factor 1 / (1 - rho) on s is the cheap
    form. At rest it is LPWL in seconds; near saturation reuse counts more and more.

    j is what its decode will cost the answers that stream there, and they it: every decode step takes longer by what
    each context token adds (learned per worker from answers that have ended, see `router.placement.decode_step_time`),
    for the request the tokens they hold and for each of them its own, as long as they run together. Nothing while
    nothing is learned. These seconds are spread over hundreds of tokens that stream already, where v and s are waited
    out in silence, so they count with the weight w: services in use allow an answer of some hundred tokens about ten
    times the time of its first token (MLPerf for an 8B model: 2 s, and 100 ms for each token).

    `lane` keeps long prefills and the answers that they would stall apart, as long as that saves more delay than it
    costs: zero where it does not (see `policies.prefill_lanes`). Then some of the workers take long prefills, as many
    as the load asks for, and there a request costs the part of its decode that will be spent waiting for those, with
    the weight w; a long prefill costs half of w times its seconds for each answer that streams on a worker of either
    kind. The label `lane` on a worker, `prefill` or `decode`, says on which side it always is.

    `returning` is what the prefill takes from those who are tied to this worker by what it keeps for them, and come
    back meanwhile, as far as workers are free (see `policies.affinity_externality`). rho tells a busy worker from an
    idle one; among idle ones this tells those that are about to be needed.

    A long prompt may have to wait for it: in the gateway, while the worker it would go to is busy with other prefills
    or has no room for it beside what runs there and what will soon be asked for again (see `policies.admission_hold`).

    Two things keep a hot prefix from piling onto the one worker that has it, while that worker's prefill queue is
    short and only its decodes are many:

    * Ties. Many requests with one system prompt cost the same wherever it is held, and v and s are estimates with
      noise; the luckiest estimate would get all of them. So candidates whose costs differ by less than their
      standard errors together are equal, if they leave no more tokens uncached than the cheapest does: tokens are
      counted and not estimated, so reuse is never given up to noise. Among equals the fewest running requests win.
    * `crowd`, zero but on a worker crowded by what draws this request there. That takes significantly more running
      requests than on the least busy worker, B against A: (B - A)^2 > z^2 (B + A), the test for two Poisson counts, at
      two standard deviations for two workers and z^2 growing by 2 ln(N / 2) for N, as chance has more pairs to work
      with. And it takes as much of those B alone that begin as this prompt does, up to the first block that the least
      busy worker lacks (up to what is cached, where it lacks none): only then will the ones to come use a copy, too.
      There the price is the most that the crowd can cost this request: a share 1 - A / B of its decode time, if steps
      lengthened in proportion to their batch (as much as the dearest candidate costs, while nothing is known of decode
      times). Where copying the prefix costs less than that, it is copied. Once the least busy worker has all of it, the
      price is at most what it saves: no more than that draws a request, and the one block that all of a service's long
      prompts begin with must not outweigh a queue. It is the spill of smg 1.13 and of consistent hashing with bounded
      loads, with a price in place of a cliff. A worker that is busy for other reasons is no crowd: moving a
      conversation off it costs a prefill that nobody else will use.
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
        """Rank by cost, the winner of the ties first."""
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
            f"{reason}; had better wait for {awaited}" if awaited else reason,
            tuple([costs_s[place] for place in ranked]),
            "s" if workers[cheapest].learned else "tokens",
            LazyTerms(workers, _explain(weight, hot_prefix_s, prefill_lane_s, affinity_externality_s)),
            hold_s,
            awaited != ROOM,
        )

    def _ranked(self, workers: Sequence[WorkerView], costs_s: Sequence[float]) -> list[int]:
        """Places in `workers`, by cost; where that is the same, by running requests and in turn.

        Few costs are the same, and sorting numbers is a fraction of the work of sorting tuples.
        """
        ranked = list(range(len(workers)))
        if len(set(costs_s)) < len(costs_s):
            ranked.sort(key=lambda place: self._turn(workers[place]))
        ranked.sort(key=costs_s.__getitem__)
        return ranked

    def _turn(self, view: WorkerView) -> tuple[int, int]:
        return view.running_requests, self._last_used.last(view.id)

    def observe(self, event: LifecycleEvent) -> None:
        """Advance the turn; follow who runs where."""
        self._last_used.observe(event)
        self._running_prefixes.observe(event)
        self._admission_hold.observe(event)
        if self._affinity_externality is not None:
            self._affinity_externality.observe(event)
        if self._prefill_lanes is not None:
            self._prefill_lanes.observe(event)

    def statistics(self) -> dict[str, object]:
        """The lanes of long prefills that there are, by model."""
        return {"prefill_lanes": {} if self._prefill_lanes is None else self._prefill_lanes.statistics()}


def hot_prefix_prices_s(
    request: RequestView, fleet: FleetView, running_prefixes: RunningPrefixes
) -> dict[WorkerId, float]:
    """What joining costs on each worker that is crowded by what draws `request` there; the others are left out."""
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
    """The largest B that (B - A)^2 > z^2 (B + A) does not tell from A, the least of so many workers'."""
    z_squared = 4.0 + 2.0 * log(max(1.0, workers / 2))
    return least + 0.5 * (z_squared + sqrt(z_squared * (z_squared + 8.0 * least)))


def _hot_prefix_s(view: WorkerView, request: RequestView, fleet: FleetView, least: int) -> float:
    if request.decode_s and view.learned:
        return request.decode_s * (1.0 - least / view.running_requests)
    return max([_first_token_s(other) for other in fleet.workers])


def _saved_s(view: WorkerView) -> float:
    """What its cached tokens would take at the pace of the uncached ones."""
    return view.prefill_s * view.cached_tokens / max(1, view.uncached_tokens)


def _blocks(view: WorkerView, request: RequestView) -> int:
    return view.cached_tokens // request.block_tokens if request.block_tokens else 0


def _costs_s(workers: Sequence[WorkerView], weight: float, prices_s: Sequence[Mapping[WorkerId, float]]) -> list[float]:
    """In their order; `prices_s` are what some of them cost besides."""
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
    """Bound to prices and not to the request: decisions are kept for a while, and prompts must not be."""

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
    """Those of `ranked` that cost as good as what the first does and leave no more uncached; the first is one."""
    cheapest, cheapest_s = workers[ranked[0]], costs_s[ranked[0]]
    uncached_tokens, error_s = cheapest.uncached_tokens, cheapest.error_s
    return [
        place
        for place in ranked
        if workers[place].uncached_tokens <= uncached_tokens
        and costs_s[place] - cheapest_s <= workers[place].error_s + error_s
    ]

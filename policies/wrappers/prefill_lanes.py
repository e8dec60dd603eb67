"""Prefill lanes: keep long prefills and streams on different workers if that reduces the delay.

vLLM computes prefills and decodes in the same steps. A step with a chunk of a long prefill takes many times as long as
one without. Every stream on the worker waits for it. A router cannot make chunks smaller, but it can choose which
streams run beside them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar
from zlib import crc32

import numpy as np
from msgspec import Meta
from msgspec.structs import replace
from numpy.typing import NDArray

from policies.lazy_terms import LazyTerms
from policies.params import Params
from policies.view import (
    Column,
    Columns,
    Decision,
    FleetView,
    LifecycleEvent,
    LifecycleEventKind,
    Policy,
    RequestView,
    Roster,
    WorkerId,
    WorkerView,
)
from policies.wrappers.lane_plan import DECODE, LABEL, PREFILL, Plan, planned
from policies.wrappers.workload_histogram import WorkloadHistogram
from policies.wrappers.wrapper import Wrapper

TERM = "prefill_lane_s"
STREAM_WEIGHT = 0.1
REPLAN_S = 5.0
_MODELS_KEPT = 64
_ROSTERS_KEPT = 16


class LanesParams(Params, frozen=True):
    stream_weight: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(
            description="Weight of a second of slower streaming; one before the first token weighs 1. "
            "Without it the rule's own `stream_weight` applies, else 0.1."
        ),
    ] = None


class PrefillLanes(Wrapper):
    """Price long prefills outside the lane and other requests inside it, while that reduces the total delay.

    For each model, `delay_per_s` computes the delay of the recent workload: once with all workers together, and once
    with a separate lane. The best split and lane size are computed every 5 s, and used if they save a tenth. Split and
    size change slowly, and so do the prices, which use the plan's own means. Prices from the present number of streams
    would oscillate, because a choice changes that number only ten seconds later.

    A long prefill costs its decode externality: its seconds times the plan's streams on such a worker. Any other
    request in the lane costs the part of its decode that long prefills will take. Prices are finite, so no request
    starves. When the lane's queue exceeds the delay that the lane saves, prefills go elsewhere, in the order of the
    other terms.

    A rule that prices in seconds adds the price to its costs (`FleetView.lane_price_s`). Any other rule sees only some
    candidates: those in the lane if the prompt's prefill is long on any candidate, and those outside where its prefill
    is short. It also sees each other candidate where queue wait and price together are below the least queue wait of
    these, so that nothing starves. The candidates that are left out are ranked last, by price and queue wait.
    """

    meaning: ClassVar[str] = "Price that keeps long prefills in the prefill lane and other requests out of it."

    def __init__(self, inner: Policy, weight: float) -> None:
        """`weight` is the weight of a second of slower streaming; a second of waiting for a first token weighs 1."""
        super().__init__(inner)
        self._adds_price = bool(getattr(inner, "prices_in_seconds", False))
        self._weight = weight
        self._model_lanes: OrderedDict[str, ModelLane] = OrderedDict()

    def __getnewargs__(self) -> tuple[Policy, float]:
        return self.inner, self._weight

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Return the inner rule's decision on priced candidates, or on those of the request's side of the lane."""
        price_s = self.prices_s(request, fleet)
        if not len(price_s):
            return self.inner.decide(request, fleet)
        if self._adds_price:
            return self.inner.decide(request, fleet.copied(lane_price_s=price_s))
        return (
            self._among_own(request, fleet, np.asarray(price_s)) if fleet.learned else self.inner.decide(request, fleet)
        )

    def _among_own(self, request: RequestView, fleet: FleetView, price_s: Column) -> Decision:
        model_lane = self._model_lanes[request.model]
        own = model_lane.own(fleet, price_s)
        places: list[int] = np.flatnonzero(own).tolist()
        roster = None if fleet.is_small else model_lane.roster_of(fleet.roster, places)
        decision = self.inner.decide(request, _among(fleet, places, roster))
        left_out = np.flatnonzero(~own)
        last = left_out[np.lexsort((fleet.queue_wait_s[left_out], price_s[left_out]))].tolist()
        return replace(
            decision,
            ranked=(*decision.ranked, *[fleet.ids[place] for place in last]),
            reason=f"{decision.reason}; prefill lane: {len(places)} of {len(fleet)} candidates"
            if last
            else decision.reason,
            terms=_with_price(fleet, decision.terms, price_s),
        )

    def prices_s(self, request: RequestView, fleet: FleetView) -> Sequence[float] | Column:
        """Return the lane price of each candidate by place; empty if there is no lane."""
        model_lane = self._model_lanes.get(request.model)
        if model_lane is None or model_lane.plan is None:
            return ()
        plan = model_lane.plan
        spent_s = self._weight * request.decode_s * plan.long_share
        within, without = self._weight * plan.streams_within, self._weight * plan.streams_without
        if fleet.is_small:
            lane, prices_s = model_lane.lane, []
            for view in fleet.workers:
                price_s, streams = (spent_s, within) if view.id in lane else (0.0, without)
                prices_s.append(price_s + view.prefill_s * streams if view.prefill_s >= plan.long_s else price_s)
            return prices_s
        in_lane, own_s = model_lane.members(fleet.roster), fleet.prefill_s
        streams_of = np.where(in_lane, within, without)
        return np.where(in_lane, spent_s, 0.0) + np.where(own_s >= plan.long_s, own_s * streams_of, 0.0)

    def observe(self, event: LifecycleEvent) -> None:
        self.pass_on(event)
        placed, fleet, model = event.placed, event.fleet, event.request.model
        if event.kind is not LifecycleEventKind.RESERVED or placed is None or fleet is None or not placed.learned:
            return
        if not event.request.prompt_tokens:
            return
        model_lane = self._model_lanes.pop(model, None) or ModelLane(self._weight)
        self._model_lanes[model] = model_lane
        model_lane.reserved(event.request, placed, fleet)
        if len(self._model_lanes) > _MODELS_KEPT:
            self._model_lanes.popitem(last=False)

    def statistics(self) -> dict[str, object]:
        lanes = {
            model: {**model_lane.plan._asdict(), "workers": sorted(model_lane.lane)}
            for model, model_lane in self._model_lanes.items()
            if model_lane.plan is not None
        }
        return {**super().statistics(), "prefill_lanes": lanes}


def lane_prices_s(policy: Policy, request: RequestView, fleet: FleetView) -> Sequence[float] | Column:
    """Return the lane price of each candidate by place in a policy with lanes; empty if there is no lane."""
    inner: object = policy
    while isinstance(inner, Wrapper):
        if isinstance(inner, PrefillLanes):
            return inner.prices_s(request, fleet)
        inner = inner.inner
    return ()


def _among(fleet: FleetView, places: Sequence[int], roster: Roster | None) -> FleetView:
    """Return the fleet of the candidates at `places`, in the same form. `roster` is theirs, if there is one."""
    if fleet.is_small:
        workers = tuple([fleet.workers[place] for place in places])
        return FleetView(fleet.now_s, workers, roster, None, fleet.running_share)
    columns, rows = fleet.columns, np.asarray(places)
    tiers = columns.cached_tokens_by_tier
    few = Columns(
        {fact: column[rows] for fact, column in columns.arrays.items()},
        [columns.residency[place] for place in places],
        columns.learned,
        {row: tiers[place] for row, place in enumerate(places) if place in tiers},
    )
    roster = _roster_among(fleet.roster, places) if roster is None else roster
    return FleetView(fleet.now_s, None, roster, few, fleet.running_share)


def _roster_among(roster: Roster, places: Sequence[int]) -> Roster:
    return Roster(
        tuple([roster.ids[place] for place in places]),
        [roster.labels[place] for place in places],
        [roster.weights[place] for place in places],
    )


def _with_price(
    fleet: FleetView, terms: Mapping[WorkerId, Mapping[str, float]], price_s: Column
) -> Mapping[WorkerId, Mapping[str, float]]:
    ids = fleet.ids
    return LazyTerms(fleet, lambda place: {**terms.get(ids[place], {}), TERM: float(price_s[place])})


class ModelLane:
    """One model's recent workload, and its lane."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._histogram = WorkloadHistogram()
        self._fleet: FleetView | None = None
        """The largest candidate set since the last plan. Others may be smaller, because a request may be limited to
        some workers."""
        self._planned_s = -math.inf
        self.plan: Plan | None = None
        self.lane: frozenset[WorkerId] = frozenset()
        self._members: tuple[Roster, frozenset[WorkerId], NDArray[np.bool_]] | None = None
        self._rosters: OrderedDict[tuple[int, tuple[int, ...]], tuple[Roster, Roster]] = OrderedDict()
        """By the identity of a roster, which is kept so that the identity stays its own, and places in it."""

    def __reduce__(self) -> tuple[Callable[..., ModelLane], tuple[object, ...], tuple[object, ...]]:
        # What is kept by the identity of a roster means nothing in another process.
        state = self._histogram, self._fleet, self._planned_s, self.plan, self.lane
        return ModelLane, (self._weight,), state

    def __setstate__(
        self, state: tuple[WorkloadHistogram, FleetView | None, float, Plan | None, frozenset[WorkerId]]
    ) -> None:
        self._histogram, self._fleet, self._planned_s, self.plan, self.lane = state

    def members(self, roster: Roster) -> NDArray[np.bool_]:
        found = self._members
        if found is None or found[0] is not roster or found[1] is not self.lane:
            lane = self.lane
            found = self._members = roster, lane, np.array([worker in lane for worker in roster.ids])
        return found[2]

    def own(self, fleet: FleetView, price_s: Column) -> NDArray[np.bool_]:
        """Return whether each candidate is on the request's side of the lane, or worth crossing to."""
        assert self.plan is not None
        in_lane, short = self.members(fleet.roster), fleet.prefill_s < self.plan.long_s
        own: NDArray[np.bool_] = np.where(in_lane, not short.all(), short)
        if not own.any():
            return np.ones(len(fleet), np.bool_)
        wait_s = fleet.queue_wait_s
        own |= wait_s + price_s < wait_s[own].min()
        return own

    def roster_of(self, roster: Roster, places: list[int]) -> Roster:
        """Return the roster of some candidates: the same one for the same places, for what policies keep by roster."""
        key = id(roster), tuple(places)
        found = self._rosters.pop(key, None) or (roster, _roster_among(roster, places))
        self._rosters[key] = found
        if len(self._rosters) > _ROSTERS_KEPT:
            self._rosters.popitem(last=False)
        return found[1]

    def reserved(self, request: RequestView, placed: WorkerView, fleet: FleetView) -> None:
        longest_s = max([view.prefill_s for view in fleet.workers]) if fleet.is_small else float(fleet.prefill_s.max())
        self._histogram.observe(placed, longest_s, request.decode_s, fleet.now_s)
        if self._fleet is None or len(fleet) >= len(self._fleet):
            self._fleet = fleet
        if fleet.now_s >= self._planned_s + REPLAN_S:
            self._planned_s = fleet.now_s
            self._replan(self._fleet.workers)

    def _replan(self, views: tuple[WorkerView, ...]) -> None:
        self._fleet = None
        mixes = list(self._histogram.splits(sum([view.utilisation for view in views])))
        self.plan = planned(mixes, self.plan, views, self._weight)
        self.lane = frozenset() if self.plan is None else _staffed(views, self.plan.workers)


def _staffed(views: Sequence[WorkerView], workers: int) -> frozenset[WorkerId]:
    """Return the workers in the lane.

    The order depends on label and name only, so that a lane grows and shrinks at one end and all processes agree.
    """

    def rank(view: WorkerView) -> tuple[int, int, WorkerId]:
        pin = view.labels.get(LABEL)
        return (pin == DECODE) - (pin == PREFILL), crc32(view.id.encode()), view.id

    return frozenset([view.id for view in sorted(views, key=rank)[:workers]])

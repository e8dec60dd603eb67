"""Prefill lanes: keep long prefills and streams on different workers if that reduces the delay.

vLLM computes prefills and decodes in the same steps. A step with a chunk of a long prefill takes many times as long as
one without. Every stream on the worker waits for it. A router cannot make chunks smaller, but it can choose which
streams run beside them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from policies.view import (
    Column,
    FleetView,
    LifecycleEvent,
    LifecycleEventKind,
    RequestView,
    Roster,
    WorkerId,
    WorkerView,
)
from policies.workload_histogram import Mix, Part, WorkloadHistogram

LABEL = "lane"
PREFILL = "prefill"
"""A worker with this label is always in the prefill lane."""
DECODE = "decode"
"""A worker with this label is never in the prefill lane. When the lane is full, long prefills can still go to it.
If any worker has one of the two labels, there is a lane as long as prefills differ in length."""
REPLAN_S = 5.0
HYSTERESIS = 0.1
"""Share of the present plan's cost that a new plan must save to replace it."""
DECODE_EXTERNALITY_SHARE = 0.5
"""Share of the decode externality that a long prefill is charged. With a share of 1 the mean delay is as low and
answers stream a little faster. But long prompts, which have the slowest first tokens, wait longer for the lane
(decision 0014)."""
_FULL = 0.97
"""The highest utilisation that the formulas use: near 1 the queue grows without limit."""
_MODELS_KEPT = 64


class Plan(NamedTuple):
    """A lane: `workers` is the number of a model's workers that take prefills of at least `long_s`.

    Under the plan, a worker in the lane has `streams_within` streams and spends `long_share` of its time on long
    prefills. A worker outside has `streams_without` streams.
    """

    long_s: float
    workers: int
    streams_within: float
    streams_without: float
    long_share: float


class PrefillLanes:
    """Price long prefills outside the lane and other requests inside it, while that reduces the total delay.

    For each model, `delay_per_s` computes the delay of the recent workload: once with all workers together, and once
    with a separate lane. The best split and lane size are computed every 5 s, and used if they save a tenth. Split and
    size change slowly, and so do the prices, which use the plan's own means. Prices from the present number of streams
    would oscillate, because a choice changes that number only ten seconds later.

    A long prefill costs half of its decode externality: its seconds times the plan's streams on such a worker. Any
    other request in the lane costs the part of its decode that long prefills will take. Prices are finite, so no
    request starves. When the lane's queue exceeds half of the delay that the lane saves, prefills go elsewhere, in the
    order of the other terms.
    """

    def __init__(self, weight: float) -> None:
        """`weight` is the weight of a second of slower streaming; a second of waiting for a first token weighs 1."""
        self._weight = weight
        self._model_lanes: OrderedDict[str, ModelLane] = OrderedDict()

    def prices_s(self, request: RequestView, fleet: FleetView) -> Sequence[float] | Column:
        """Return the lane price of each candidate by place; empty if there is no lane."""
        model_lane = self._model_lanes.get(request.model)
        if model_lane is None or model_lane.plan is None:
            return ()
        plan = model_lane.plan
        spent_s = self._weight * request.decode_s * plan.long_share
        charged = self._weight * DECODE_EXTERNALITY_SHARE
        within, without = charged * plan.streams_within, charged * plan.streams_without
        if fleet.by_row:
            lane, prices_s = model_lane.lane, []
            for view in fleet.workers:
                price_s, streams = (spent_s, within) if view.id in lane else (0.0, without)
                prices_s.append(price_s + view.prefill_s * streams if view.prefill_s >= plan.long_s else price_s)
            return prices_s
        in_lane, own_s = model_lane.members(fleet.roster), fleet.prefill_s
        streams_of = np.where(in_lane, within, without)
        return np.where(in_lane, spent_s, 0.0) + np.where(own_s >= plan.long_s, own_s * streams_of, 0.0)

    def observe(self, event: LifecycleEvent) -> None:
        """Record a reservation and ignore other events."""
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

    def statistics(self) -> dict[str, dict[str, object]]:
        """Return the lane of each model that has one, with its plan."""
        return {
            model: {**model_lane.plan._asdict(), "workers": sorted(model_lane.lane)}
            for model, model_lane in self._model_lanes.items()
            if model_lane.plan is not None
        }


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

    def members(self, roster: Roster) -> NDArray[np.bool_]:
        """Return whether each worker of the roster is in the lane."""
        found = self._members
        if found is None or found[0] is not roster or found[1] is not self.lane:
            lane = self.lane
            found = self._members = roster, lane, np.array([worker in lane for worker in roster.ids])
        return found[2]

    def reserved(self, request: RequestView, placed: WorkerView, fleet: FleetView) -> None:
        """Record that a request was placed on `placed`, one of the workers of `fleet`."""
        longest_s = max([view.prefill_s for view in fleet.workers]) if fleet.by_row else float(fleet.prefill_s.max())
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


def planned(mixes: Sequence[Mix], present: Plan | None, views: Sequence[WorkerView], weight: float) -> Plan | None:
    """Return the plan to use next; None for no lane.

    `mixes` are the possible splits of the workload, `present` is the plan in force, `views` are the workers.
    """
    pins = [view.labels.get(LABEL) for view in views]
    least, most = max(1, pins.count(PREFILL)), len(views) - max(1, pins.count(DECODE))
    if not mixes or most < least:
        return None
    costs_s = {
        (mix, size): lane_delay_per_s(mix, size, len(views), weight)
        for mix in mixes
        for size in _sizes(least, most, present)
    }
    pinned = PREFILL in pins or DECODE in pins
    kept_s = math.inf if pinned else delay_per_s(mixes[0].tied.plus(mixes[0].free), len(views), weight)
    kept: tuple[Mix, int] | None = None
    for (mix, size), cost_s in costs_s.items():
        if present is not None and (mix.at_s, size) == (present.long_s, present.workers) and cost_s <= kept_s:
            kept, kept_s = (mix, size), cost_s
    best = min(costs_s, key=lambda one: costs_s[one])
    chosen = best if costs_s[best] < (1.0 - HYSTERESIS) * kept_s else kept
    return None if chosen is None else _plan(*chosen, len(views))


def lane_delay_per_s(mix: Mix, lane: int, workers: int, weight: float) -> float:
    """Return the delay with `lane` workers in the lane, which serve the `tied` requests. The other workers serve the
    `free` ones."""
    return delay_per_s(mix.tied, lane, weight) + delay_per_s(mix.free, workers - lane, weight)


def delay_per_s(part: Part, workers: int, weight: float) -> float:
    """Return the seconds of delay that arise per second when `workers` share these requests evenly.

    Prefills wait for each other as in an M/G/c queue: M/M/c by Sakasegawa's approximation of 1977, times half of one
    plus the squared coefficient of variation. The number of streams equals the decode seconds per second. Streams stand
    still while their worker prefills (`weight`). Beyond saturation the delay grows in proportion to the load, so that
    plans can still be compared.
    """
    if part.prefill_s <= 0.0:
        return 0.0
    share = part.prefill_s / workers
    utilisation = min(share, _FULL)
    residual_s = part.prefill_s2 / (2.0 * part.prefill_s)
    streams = part.decode_s / workers
    wait_s = residual_s * math.pow(utilisation, math.sqrt(2.0 * (workers + 1)) - 1.0) / (workers * (1.0 - utilisation))
    streaming_s = part.decode_s * utilisation + part.decode_externality_s * streams
    return (part.requests * wait_s + weight * streaming_s) * share / utilisation


def _sizes(least: int, most: int, present: Plan | None) -> set[int]:
    """Return lane sizes to try: all in a small fleet; in a large one, steps of a quarter of the size."""
    sizes = {most} if present is None else {most, min(max(least, present.workers), most)}
    size = least
    while size < most:
        sizes.add(size)
        size += max(1, size // 4)
    return sizes


def _plan(mix: Mix, lane: int, workers: int) -> Plan:
    return Plan(
        mix.at_s,
        lane,
        mix.tied.decode_s / lane,
        mix.free.decode_s / (workers - lane),
        min(_FULL, mix.long.prefill_s / lane),
    )

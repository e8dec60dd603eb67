"""Prefill-heavy or decode-heavy, and lanes that keep the two from hurting each other.

vLLM computes prefills and decodes in the same steps, and a step with a chunk of a long prefill in it takes many times
as long as one without: whoever streams there waits. A router cannot make chunks smaller; it can choose who meets them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from policies.view import FleetView, LifecycleEvent, LifecycleEventKind, RequestView, WorkerId, WorkerView
from policies.workload_histogram import Mix, Part, WorkloadHistogram

LABEL = "lane"
PREFILL = "prefill"
"""A worker with this label is always in the lane of long prefills."""
DECODE = "decode"
"""A worker with this label never is. Where the lane is full, long prefills may still spill there. With either label
there is a lane as long as there are prefills of different lengths."""
REPLAN_S = 5.0
HYSTERESIS = 0.1
"""Share of what the present plan costs that another has to save."""
DECODE_EXTERNALITY_SHARE = 0.5
"""Of what a long prefill stalls, the share that it is charged. With all of it the mean delay is as low and answers
stream a little faster, but long prompts, the slowest first tokens of all, wait longer for the lane (decision 0014)."""
_FULL = 0.97
"""Utilisation beyond which a queue has no end."""
_MODELS_KEPT = 64


class Plan(NamedTuple):
    """`workers` of a pool take prefills of at least `long_s`: the lane.

    While it is kept, a worker in the lane has `streams_within` answers streaming and spends `long_share` of its time on
    long prefills; one outside has `streams_without`.
    """

    long_s: float
    workers: int
    streams_within: float
    streams_without: float
    long_share: float


class PrefillLanes:
    """Prices that keep long prefills in the lane and other requests out of it, while that costs less delay in all.

    Per model, the delay is that of `delay_per_s`, once for all workers together and once for lane and others apart,
    over what was asked for in the last minutes. The best split and size win if they save a tenth; looked at every 5 s.
    Both change slowly, and so do the prices, which are made of the plan's own means. Prices on how many answers stream
    at the moment would swing: a choice shows there ten seconds late.

    A long prefill costs half of what it stalls: its seconds times the plan's streams on a worker like that. Any other
    request costs, in the lane, the part of its decode that long prefills will take. Prices are finite, so nobody
    starves: where the lane's queue has become longer than half of what it saves, prefills spill, first where the other
    terms say.
    """

    def __init__(self, weight: float) -> None:
        """`weight` is what a second of slower streaming counts, against one of waiting for a first token."""
        self._weight = weight
        self._model_lanes: OrderedDict[str, ModelLane] = OrderedDict()

    def prices_s(self, request: RequestView, fleet: FleetView) -> dict[WorkerId, float]:
        """What each candidate costs beside its own terms; nothing where there is no lane."""
        model_lane = self._model_lanes.get(request.model)
        if model_lane is None or model_lane.plan is None:
            return {}
        plan, lane = model_lane.plan, model_lane.lane
        spent_s = self._weight * request.decode_s * plan.long_share
        charged = self._weight * DECODE_EXTERNALITY_SHARE
        within, without = charged * plan.streams_within, charged * plan.streams_without
        prices = {}
        for view in fleet.workers:
            price_s, streams = (spent_s, within) if view.id in lane else (0.0, without)
            prices[view.id] = price_s + view.prefill_s * streams if view.prefill_s >= plan.long_s else price_s
        return prices

    def observe(self, event: LifecycleEvent) -> None:
        """Take note of a booking; other edges do not matter here."""
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
        """The lane of each model that has one, and the plan behind it."""
        return {
            model: {**model_lane.plan._asdict(), "workers": sorted(model_lane.lane)}
            for model, model_lane in self._model_lanes.items()
            if model_lane.plan is not None
        }


class ModelLane:
    """One model's workers: what they were asked for, and their lane."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._histogram = WorkloadHistogram()
        self._fleet: FleetView | None = None
        """The most candidates that a request has had since the last plan: not every one may go everywhere."""
        self._planned_s = -math.inf
        self.plan: Plan | None = None
        self.lane: frozenset[WorkerId] = frozenset()

    def reserved(self, request: RequestView, placed: WorkerView, fleet: FleetView) -> None:
        """A request goes to `placed`, out of `fleet`."""
        longest_s = max([view.prefill_s for view in fleet.workers])
        self._histogram.observe(placed, longest_s, request.decode_s, fleet.now_s)
        if self._fleet is None or len(fleet.workers) >= len(self._fleet.workers):
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
    """In an order that goes by labels and names alone: lanes grow and shrink at one end, and all processes and replicas
    have the same."""

    def rank(view: WorkerView) -> tuple[int, int, WorkerId]:
        pin = view.labels.get(LABEL)
        return (pin == DECODE) - (pin == PREFILL), crc32(view.id.encode()), view.id

    return frozenset([view.id for view in sorted(views, key=rank)[:workers]])


def planned(mixes: Sequence[Mix], present: Plan | None, views: Sequence[WorkerView], weight: float) -> Plan | None:
    """The plan to go on with, None for no lane.

    `mixes` are the ways to split what is asked for, `present` the plan in force, `views` the workers.
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
    """The delay with so many workers in the lane: it serves `tied` requests, and the others `free` ones."""
    return delay_per_s(mix.tied, lane, weight) + delay_per_s(mix.free, workers - lane, weight)


def delay_per_s(part: Part, workers: int, weight: float) -> float:
    """Seconds of delay that arise per second where `workers` share these requests evenly.

    Prefills wait for one another as in an M/G/c queue (M/M/c by Sakasegawa's approximation of 1977, times half of one
    plus the squared variation); answers that stream, as many as their seconds per second, stand still (`weight`) while
    their worker prefills. Beyond saturation it goes on in proportion, so that plans can still be compared.
    """
    if part.prefill_s <= 0.0:
        return 0.0
    share = part.prefill_s / workers
    rho = min(share, _FULL)
    residual_s = part.prefill_s2 / (2.0 * part.prefill_s)
    streams = part.decode_s / workers
    wait_s = residual_s * math.pow(rho, math.sqrt(2.0 * (workers + 1)) - 1.0) / (workers * (1.0 - rho))
    streaming_s = part.decode_s * rho + part.decode_externality_s * streams
    return (part.requests * wait_s + weight * streaming_s) * share / rho


def _sizes(least: int, most: int, present: Plan | None) -> set[int]:
    """All of them in a small fleet, fewer and fewer in a large one."""
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

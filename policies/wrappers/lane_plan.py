"""Whether a lane for long prefills saves delay, and how large it should be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from policies.records import UTILISATION_CAP
from policies.view import WorkerView
from policies.wrappers.workload_histogram import Mix, Part

LABEL = "lane"
PREFILL = "prefill"
"""A worker with this label is always in the prefill lane."""
DECODE = "decode"
"""A worker with this label is never in the prefill lane. When the lane is full, long prefills can still go to it.
If any worker has one of the two labels, there is a lane as long as prefills differ in length."""
HYSTERESIS = 0.1
"""Share of the present plan's cost that a new plan must save to replace it."""


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
    utilisation = min(share, UTILISATION_CAP)
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
        min(UTILISATION_CAP, mix.long.prefill_s / lane),
    )

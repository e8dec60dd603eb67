"""How many workers of each role the present load needs, for an autoscaler.

The number of ready workers is multiplied by the largest ratio of a measure to its target, as Kubernetes' horizontal
autoscaler does with several metrics. Each measure covers what the others miss: prefill utilisation the compute of
prompts, KV occupancy the streams, and the queue wait a burst. Missed service levels count only while there is load,
since more workers would not help otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, exp
from typing import NamedTuple

from backends.worker import LoadReport
from policies.view import WorkerView
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.health import SERVING, WorkerState

MOST_GROWTH = 2.0
"""Factor by which one measure may raise the number: measures far above their target say little about how far."""
WINDOW_S = 60.0
"""Memory of the attainment of service levels."""
LEAST_JUDGED = 5.0
"""Judged streams within the window below which the attainment is not known."""
KV_OCCUPANCY = 0.8
"""Share of the KV cache that requests in progress may use. An autoscaler with another target takes the measures."""
PREFILL_UTILISATION = 0.7
"""Share of time that may go into prefills."""
QUEUE_WAIT_S = 1.0
"""Longest estimated time until the prefill of a new prompt would start."""
_SERVICE_LEVEL = 0.95
"""Least share of streams that meet their `slo`."""
_LOADED = 0.5
"""Share of a target above which missed service levels count."""
_ROUNDING = 0.05
"""Part of a worker by which a target may be missed without a further worker."""


class Needed(NamedTuple):
    """The measures of one role's ready workers, and the number of workers that they ask for.

    `kv_occupancy`, `utilisation` and `queue_wait_s` are means. `attainment` is the share of streams that met their
    service levels; None if few were judged.
    """

    ready: int
    kv_occupancy: float
    utilisation: float
    queue_wait_s: float
    attainment: float | None
    desired: int


class Attainment:
    """The share of recent streams that met their service levels, by the role of their workers."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float, float]] = {}

    def judged(self, role: str, met: bool, now_s: float) -> None:
        """Record a stream's result for one target."""
        total, good = self._at(role, now_s)
        self._sums[role] = (total + 1.0, good + met, now_s)

    def share(self, role: str, now_s: float) -> float | None:
        """Return the share over about `WINDOW_S`; None if few were judged."""
        total, good = self._at(role, now_s)
        return good / total if total >= LEAST_JUDGED else None

    def _at(self, role: str, now_s: float) -> tuple[float, float]:
        total, good, at_s = self._sums.get(role, (0.0, 0.0, now_s))
        kept = exp((at_s - now_s) / WINDOW_S)
        return total * kept, good * kept

    def statistics(self, now_s: float) -> dict[str, float | None]:
        return {role: self.share(role, now_s) for role in self._sums}


def needed(
    endpoints: Iterable[FleetEndpoint],
    views: Sequence[WorkerView],
    attained: Mapping[str, float | None],
) -> dict[str, Needed]:
    """Return what each role needs. Workers in maintenance do not count, because no autoscaler put them there."""
    by_id: dict[str, WorkerView] = {view.id: view for view in views}
    roles: dict[str, list[FleetEndpoint]] = {}
    for endpoint in endpoints:
        if endpoint.state is not WorkerState.DRAINING:
            roles.setdefault(endpoint.role, []).append(endpoint)
    return {role: _of_role(members, by_id, attained.get(role)) for role, members in roles.items()}


def _of_role(
    members: Sequence[FleetEndpoint],
    views: Mapping[str, WorkerView],
    attainment: float | None,
) -> Needed:
    serving = [endpoint for endpoint in members if endpoint.state in SERVING]
    candidates = [candidate for endpoint in serving for candidate in endpoint.candidates]
    seen = [(views[each.id], each.load) for each in candidates if each.id in views]
    if not seen:  # without a ready worker there is nothing to measure: keep what there is
        return Needed(0, 0.0, 0.0, 0.0, attainment, len(members))
    occupancy = _mean(_occupancy(view, load) for view, load in seen)
    utilisation = _mean(view.utilisation for view, _ in seen)
    wait_s = _mean(view.queue_wait_s for view, _ in seen)
    ratios = [occupancy / KV_OCCUPANCY, utilisation / PREFILL_UTILISATION, wait_s / QUEUE_WAIT_S]
    if attainment is not None and max(ratios) > _LOADED:
        ratios.append(_SERVICE_LEVEL / max(attainment, _SERVICE_LEVEL / MOST_GROWTH))
    ratio = min(max(ratios), MOST_GROWTH)
    desired = max(1, ceil(len(serving) * ratio - _ROUNDING))
    return Needed(len(serving), occupancy, utilisation, wait_s, attainment, desired)


def _occupancy(view: WorkerView, load: LoadReport | None) -> float:
    """Return the share of the KV cache in use: as reserved, or as the worker reported if that is more."""
    reserved = view.kv_tokens / view.kv_capacity_tokens if view.kv_capacity_tokens else 0.0
    return max(reserved, load.kv_usage if load is not None else 0.0)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)

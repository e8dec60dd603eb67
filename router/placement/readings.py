"""The metrics of placement that are read at scrape time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from policies.view import Residency, WorkerView
from router.metrics.instruments import Reading
from router.placement.core import DecisionCore
from router.placement.fleet.fleet import Candidate, Fleet, WorkerState
from router.placement.fleet.health import SERVING
from router.placement.fleet.scaling import Needed, needed
from router.placement.handover.links import Link
from router.residency.residency_map import ResidencyMap

MOST_MODELS = 256
"""Models of which the ready workers are counted."""


class PlacementReadings:
    """Workers and their caches, as decisions see them. `attained` returns the share of streams that met their service
    levels, by role and at a time.
    """

    def __init__(
        self,
        fleet: Fleet,
        residency: ResidencyMap,
        core: DecisionCore,
        attained: Callable[[float], Mapping[str, float | None]],
        now_s: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._residency = residency
        self._core = core
        self._attained = attained
        self._now_s = now_s

    def readings(self) -> Iterator[Reading]:
        """Yield what is known of workers, links, roles, cache views, and the decision log."""
        core, now_s = self._core, self._now_s()
        views = core.loads.shown(self._fleet.candidates, now_s)
        yield from fleet_readings(self._fleet)
        for view in views:
            yield "warmroute_queued_prefill_seconds", (view.id,), view.queue_wait_s
        yield from link_readings(core.planner.known_links(now_s))
        yield from self._scaling(views, now_s)
        yield from residency_readings(self._fleet, self._residency)
        recorded = core.policies.statistics()["recorded"] or {"lost_windows": 0}
        yield "warmroute_decision_log_lost_windows", (), recorded["lost_windows"]

    def _scaling(self, views: tuple[WorkerView, ...], now_s: float) -> Iterator[Reading]:
        return scaling_readings(needed(self._fleet.endpoints, views, self._attained(now_s)))


def fleet_readings(fleet: Fleet) -> Iterator[Reading]:
    """Yield states of endpoints, and the last reported load of candidates."""
    for endpoint in fleet.endpoints:
        for state in WorkerState:
            yield "warmroute_worker_state", (endpoint.id, state.value), float(endpoint.state is state)
    yield "warmroute_workers_kept", (), sum(one.health.kept_since_s is not None for one in fleet.endpoints)
    ready = [endpoint for endpoint in fleet.endpoints if endpoint.state in SERVING]
    yield "warmroute_ready_workers", (), len(ready)
    for model, number in _ready_by_model(fleet).items():
        yield "warmroute_model_ready_workers", (model,), number
    for candidate in fleet.candidates:
        yield from _load(candidate)


def _ready_by_model(fleet: Fleet) -> dict[str, int]:
    found: dict[str, int] = {}
    for endpoint in fleet.endpoints:
        for card in endpoint.facts.models if endpoint.facts is not None else ():
            if card.id in found or len(found) < MOST_MODELS:
                found[card.id] = found.get(card.id, 0) + (endpoint.state in SERVING)
    return found


def _load(candidate: Candidate) -> Iterator[Reading]:
    load = candidate.load
    if load is None:
        return
    yield "warmroute_worker_requests", (candidate.id, "running"), load.running
    yield "warmroute_worker_requests", (candidate.id, "waiting"), load.waiting
    yield "warmroute_worker_kv_usage_ratio", (candidate.id,), load.kv_usage


def link_readings(links: Iterable[Link]) -> Iterator[Reading]:
    """Yield the slowest link to each candidate that KV cache has moved to."""
    slowest: dict[tuple[str, str], float] = {}
    for link in links:
        labels: tuple[str, str] = (link.receiver.id, link.kind)
        slowest[labels] = min(slowest.get(labels, link.tokens_per_s), link.tokens_per_s)
    for labels, speed in slowest.items():
        yield "warmroute_kv_transfer_tokens_per_second", labels, speed


def scaling_readings(roles: Mapping[str, Needed]) -> Iterator[Reading]:
    """Yield the number of workers that each role needs and its inputs."""
    for role, found in roles.items():
        yield "warmroute_desired_replicas", (role,), found.desired
        if found.attainment is not None:
            yield "warmroute_role_service_level_ratio", (role,), found.attainment
        if found.ready:
            yield "warmroute_role_utilisation_ratio", (role, "kv_cache"), found.kv_occupancy
            yield "warmroute_role_utilisation_ratio", (role, "prefill"), found.utilisation
            yield "warmroute_role_queued_prefill_seconds", (role,), found.queue_wait_s


def residency_readings(fleet: Fleet, residency: ResidencyMap) -> Iterator[Reading]:
    """Yield the state of the worker caches and of their event streams."""
    statistics: Mapping[str, Any] = residency.statistics()
    for candidate in fleet.candidates:
        state, labels = residency.slot(candidate.slot).state(), (candidate.id,)
        for residence in Residency:
            value = float(state.residency is residence)
            yield "warmroute_view_residency", (candidate.id, residence.value), value
        yield "warmroute_index_blocks", labels, state.blocks
        figures = statistics["slots"].get(candidate.slot, {})
        if "gaps" in figures:
            yield "warmroute_event_gaps", labels, figures["gaps"]
        for kind, key in _EVENT_FAULTS:
            if key in figures:
                yield "warmroute_event_faults", (candidate.id, kind), figures[key]


_EVENT_FAULTS = (
    ("batch", "decode_errors"),
    ("event", "malformed_events"),
    ("unknown_event", "unknown_events"),
    ("block", "skipped_blocks"),
    ("restart", "restarts"),
)

"""Values read at scrape time: gauges, and counters that other parts keep."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from policies.view import Residency, WorkerView
from router.config.budgets import BODIES, RESPONSES
from router.config.memory import MemoryLimit
from router.config.model import Config
from router.config.version import version
from router.metrics.registry import COMPILED
from router.placement.fleet.fleet import Candidate, Fleet, WorkerState
from router.placement.fleet.health import SERVING
from router.placement.fleet.scaling import Needed
from router.placement.handover.links import Link
from router.residency.residency_map import ResidencyMap
from router.telemetry.exposition import Reading
from router.telemetry.logs import lines_dropped

MOST_MODELS = 256
"""Models of which the ready workers are counted."""


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


def queue_readings(views: Iterable[WorkerView]) -> Iterator[Reading]:
    """Yield the queue wait of each candidate, from `Dispatcher.views`."""
    for view in views:
        yield "warmroute_queued_prefill_seconds", (view.id,), view.queue_wait_s


def link_readings(links: Iterable[Link]) -> Iterator[Reading]:
    """Yield the slowest link to each candidate that KV cache has moved to, from `Dispatcher.links`."""
    slowest: dict[tuple[str, str], float] = {}
    for link in links:
        labels: tuple[str, str] = (link.receiver.id, link.kind)
        slowest[labels] = min(slowest.get(labels, link.tokens_per_s), link.tokens_per_s)
    for labels, speed in slowest.items():
        yield "warmroute_kv_transfer_tokens_per_second", labels, speed


def pinned_readings(stuck_tokens: Mapping[str, int]) -> Iterator[Reading]:
    """Yield the stuck KV cache of prefill workers, from `PinnedBlocks.statistics`."""
    for worker, tokens in stuck_tokens.items():
        yield "warmroute_worker_stuck_kv_tokens", (worker,), tokens


def scaling_readings(roles: Mapping[str, Needed]) -> Iterator[Reading]:
    """Yield the number of workers that each role needs and its inputs, from `needed`."""
    for role, found in roles.items():
        yield "warmroute_desired_replicas", (role,), found.desired
        if found.attainment is not None:
            yield "warmroute_role_service_level_ratio", (role,), found.attainment
        if found.ready:
            yield "warmroute_role_utilisation_ratio", (role, "kv_cache"), found.kv_occupancy
            yield "warmroute_role_utilisation_ratio", (role, "prefill"), found.utilisation
            yield "warmroute_role_queued_prefill_seconds", (role,), found.queue_wait_s


def residency_readings(fleet: Fleet, residency: ResidencyMap) -> Iterator[Reading]:
    """Yield the state of the cache views and of their event streams."""
    statistics: Mapping[str, Any] = residency.statistics()
    for candidate in fleet.candidates:
        state, labels = residency.state(candidate.slot), (candidate.id,)
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


def watch_readings(watched: Mapping[str, Any]) -> Iterator[Reading]:
    """Yield the event links, from `Watcher.statistics()`."""
    for endpoint in watched["endpoints"].values():
        for worker, subscription in endpoint["subscriptions"].items():
            yield "warmroute_event_link_up", (worker,), float(subscription["linked"])
            if subscription["lag_s"] is not None:
                yield "warmroute_event_lag_seconds", (worker,), subscription["lag_s"]


def replica_readings(replica: Mapping[str, Any] | None) -> Iterator[Reading]:
    """Yield the state of the fleet's channel, from `Replica.statistics()`; nothing without Redis."""
    if replica is None:
        return
    yield "warmroute_replica_alone", (), float(replica["alone"])
    yield "warmroute_replicas_apart", (), len(replica["apart"])
    for key in ("errors", "missed", "malformed"):
        yield "warmroute_replica_faults", (key,), replica[key]


def gateway_readings(plane: Mapping[str, Any]) -> Iterator[Reading]:
    """Yield gauges of the data plane, from `PublicServer.statistics()` (empty while it does not listen)."""
    yield "warmroute_client_connections", (), plane.get("connections", 0)
    yield "warmroute_connections_closed", ("refused",), plane.get("connections_refused", 0)
    yield "warmroute_connections_closed", ("evicted",), plane.get("connections_evicted", 0)
    yield "warmroute_worker_connections", (), plane.get("pools", {}).get("open", 0)
    yield "warmroute_tasks", (), plane.get("tasks", 0)
    yield "warmroute_active_requests", (), plane.get("streams", 0)
    yield "warmroute_queued_requests", (), plane.get("queued", 0)
    for route, model, number in plane.get("held_by_route", ()):
        yield "warmroute_held_requests", (route, model), number
    yield "warmroute_buffered_bytes", ("requests",), plane.get("buffered_body_bytes", 0)
    yield "warmroute_buffered_bytes", ("responses",), plane.get("buffered_response_bytes", 0)
    yield "warmroute_connections_closed", ("slow_reader",), plane.get("slow_readers_cut", 0)
    for rewrite, key in _REWRITES:
        yield "warmroute_rewrites", (rewrite,), plane.get("rewrites", {}).get(key, 0)
    for route, figures in plane.get("routes", {}).items():
        yield "warmroute_route_requests", (route, "running"), figures["running"]
        yield "warmroute_route_requests", (route, "queued"), figures["queued"]
        yield "warmroute_route_refusals", (route,), figures["refused"]
    for tenant, figures in plane.get("tenants", {}).items():
        yield "warmroute_tenant_use", (tenant, "max_queued_requests"), figures["queued"]
        yield "warmroute_tenant_use", (tenant, "max_buffered_body_bytes"), figures["body_bytes"]
        yield "warmroute_tenant_refusals", (tenant, "max_queued_requests"), figures["queued_refused"]
        yield "warmroute_tenant_refusals", (tenant, "max_buffered_body_bytes"), figures["bodies_refused"]


def limit_readings(accounts: Sequence[Mapping[str, Any]]) -> Iterator[Reading]:
    """Yield the fill and the counters of each account that has limits, from `PublicServer.limits()`."""
    for account in accounts:
        name = account["account"]
        yield "warmroute_limit_admitted_requests", (name,), account["admitted"]
        yield "warmroute_limit_used_tokens", (name,), account["used_tokens"]
        if most := account["max_concurrent_requests"]:
            yield "warmroute_limit_remaining", (name, "concurrent_requests"), most - account["running"]
        for unit in ("requests", "tokens"):
            if account[unit] is not None:
                yield "warmroute_limit_remaining", (name, unit), account[unit]["remaining"]
        for limit, count in account["refused"].items():
            yield "warmroute_limit_refusals", (name, limit), count


def policy_readings(named: Mapping[str, Any]) -> Iterator[Reading]:
    """Yield the losses of the decision log, from `Dispatcher.named_statistics()`."""
    recorded = named["recorded"] or {"lost_windows": 0}
    yield "warmroute_decision_log_lost_windows", (), recorded["lost_windows"]


def discovery_readings(sources: Mapping[str, Mapping[str, Any]]) -> Iterator[Reading]:
    """Yield the state of each source of workers, from `Discovery.statistics()`."""
    for name, state in sources.items():
        yield "warmroute_discovery_up", (name,), float(state["failing_since"] is None)


def control_readings(unsaved: str | None, set_aside: int) -> Iterator[Reading]:
    """Yield whether the desired state could not be written, with the reason `unsaved`, and the files set aside."""
    yield "warmroute_state_problems", ("unsaved",), float(unsaved is not None)
    yield "warmroute_state_problems", ("set_aside",), set_aside


def identity_readings(known: Mapping[str, Any]) -> Iterator[Reading]:
    """Yield what the memory of prompts saves, and how many models are tokenised in which way."""
    for tokenizer, key in (("local", "models_local"), ("worker", "models_by_worker"), ("none", "models_text_only")):
        yield "warmroute_models", (tokenizer,), known[key]
    yield "warmroute_identified_prompt_tokens", ("memory",), known["memo"]["found_tokens"]
    yield "warmroute_identified_prompt_tokens", ("tokenizer",), known["memo"]["new_tokens"]


def setting_readings(config: Config, limit: MemoryLimit | None) -> Iterator[Reading]:
    yield "warmroute_buffered_limit_bytes", ("requests",), BODIES.within(config)
    yield "warmroute_buffered_limit_bytes", ("responses",), RESPONSES.within(config)
    if limit is not None:
        yield "warmroute_memory_limit_bytes", (limit.source,), limit.size_bytes


def trace_readings(counts: Mapping[str, int]) -> Iterator[Reading]:
    """Yield how many traces were sent or lost, from `TraceExporter.statistics()`; nothing while traces are off."""
    for outcome, count in counts.items():
        yield "warmroute_traces", (outcome,), count


def process_readings() -> Iterator[Reading]:
    """Yield values of this process. The supervisor of several counts the processes that answer, and restarts."""
    yield "warmroute_processes", (), 1.0
    yield "warmroute_process_restarts", (), 0.0
    yield "warmroute_log_lines_dropped", (), lines_dropped()
    yield "warmroute_build_info", (version(), platform.python_version(), str(COMPILED).lower()), 1.0


_EVENT_FAULTS = (
    ("batch", "decode_errors"),
    ("event", "malformed_events"),
    ("unknown_event", "unknown_events"),
    ("block", "skipped_blocks"),
    ("restart", "restarts"),
)
_REWRITES = (
    ("isolate_cache", "salted"),
    ("observe_usage", "usage_asked"),
    ("relearn", "relearn_asked"),
    ("model", "model"),
)


def _load(candidate: Candidate) -> Iterator[Reading]:
    load = candidate.load
    if load is None:
        return
    yield "warmroute_worker_requests", (candidate.id, "running"), load.running
    yield "warmroute_worker_requests", (candidate.id, "waiting"), load.waiting
    yield "warmroute_worker_kv_usage_ratio", (candidate.id,), load.kv_usage

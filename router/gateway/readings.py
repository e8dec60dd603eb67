"""The metrics of the public port that are read at scrape time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from router.metrics.instruments import Reading

_REWRITES = (("isolate_cache", "salted"), ("model", "model"))


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

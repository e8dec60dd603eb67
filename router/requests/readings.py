"""The metrics of every front that are read at scrape time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from router.metrics.instruments import Reading

_REWRITES = (("isolate_cache", "salted"), ("model", "model"))


def front_readings(now: Mapping[str, Any]) -> Iterator[Reading]:
    """Yield gauges of the requests in progress, from the `statistics()` of a front, empty while it does not listen."""
    yield "warmroute_tasks", (), now.get("tasks", 0)
    yield "warmroute_active_requests", (), now.get("streams", 0)
    yield "warmroute_queued_requests", (), now.get("queued", 0)
    for route, model, number in now.get("held_by_route", ()):
        yield "warmroute_held_requests", (route, model), number
    yield "warmroute_buffered_bytes", ("requests",), now.get("buffered_body_bytes", 0)
    for rewrite, key in _REWRITES:
        yield "warmroute_rewrites", (rewrite,), now.get("rewrites", {}).get(key, 0)
    for tenant, figures in now.get("tenants", {}).items():
        yield "warmroute_tenant_use", (tenant, "max_queued_requests"), figures["queued"]
        yield "warmroute_tenant_use", (tenant, "max_buffered_body_bytes"), figures["body_bytes"]
        yield "warmroute_tenant_refusals", (tenant, "max_queued_requests"), figures["queued_refused"]
        yield "warmroute_tenant_refusals", (tenant, "max_buffered_body_bytes"), figures["bodies_refused"]


def limit_readings(accounts: Sequence[Mapping[str, Any]]) -> Iterator[Reading]:
    """Yield the fill and the counters of each account that has limits, from the `limits()` of a front."""
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

"""Liveness, readiness, metrics and the settings in effect."""

from __future__ import annotations

from http import HTTPStatus
from itertools import islice

from router.admin.documents import Live, Ready
from router.admin.fleet.replicas import is_alone
from router.admin.fleet.sources import described_sources, failing
from router.admin.http.problems import AdminError
from router.admin.operations import Answer, Call
from router.config.model import to_builtins
from router.control.state.desired_state import with_live_settings

_NAMED = 5


async def live(_: Call) -> Answer:
    """Answer that the event loop runs."""
    return Answer(Live())


async def ready(call: Call) -> Answer:
    """Answer whether requests can be served."""
    if not call.system.accepting:
        raise _not_ready("the public port is not open, or a shutdown has begun")
    endpoints = call.system.fleet.endpoints
    serving = call.system.fleet.serving
    if not serving:
        states = [f"{endpoint.id} is {endpoint.state} ({endpoint.reason})" for endpoint in islice(endpoints, _NAMED)]
        more = [f"and {len(endpoints) - _NAMED} more"] if len(endpoints) > _NAMED else []
        detail = ", ".join(states + more) or "none is configured"
        raise _not_ready(f"no worker is ready: {detail}{failing(call.system)}")
    sources = described_sources(call.system) if call.query["verbose"] else None
    return Answer(Ready(workers_ready=serving, workers=len(endpoints), alone=is_alone(call), sources=sources))


async def metrics(call: Call) -> Answer:
    """Answer with metrics: OpenMetrics for a scraper that takes it, else Prometheus text format."""
    text, media_type = call.system.exposition(call.accept)
    return Answer(text, media_type=media_type)


async def config(call: Call) -> Answer:
    """Answer with the effective settings, without secrets."""
    system = call.system
    return Answer(to_builtins(with_live_settings(system.config, system.control.state.settings)))


def _not_ready(reason: str) -> AdminError:
    return AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", reason, headers={"retry-after": "1"})

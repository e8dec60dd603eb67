"""Liveness, readiness, metrics and the settings in effect."""

from __future__ import annotations

from http import HTTPStatus
from itertools import islice

from router.admin.documents import Shape
from router.admin.fleet.replicas import is_alone
from router.admin.fleet.sources import SourceDocument, described_sources, failing
from router.admin.http.parameters import TruthQuery
from router.admin.http.problems import AdminError
from router.admin.operations import Answer, Call, OverProcesses, operation, read
from router.admin.replies import Replies, documents_of
from router.config.model import Config, to_builtins
from router.control.state.desired_state import with_live_settings

_NAMED = 5


class Live(Shape):
    """The process runs."""

    status: str = "alive"


class Ready(Shape, kw_only=True):
    """The gateway can serve requests: `processes_ready` of its `processes` are ready. `alone`: Redis is configured and
    does not answer, so that the gateway goes on with what it has. `sources` are given with `verbose`.
    """

    status: str = "ready"
    workers_ready: int
    workers: int
    processes_ready: int = 1
    processes: int = 1
    alone: bool = False
    sources: list[SourceDocument] | None = None


@operation("GET", "/livez", gives=Live)
async def live(_: Call) -> Answer:
    """Is the process alive?"""
    return Answer(Live())


def _ready_somewhere(call: Call, replies: Replies) -> Answer:
    """Answer 200 if at least one process can serve requests."""
    if not call.system.accepting or not replies:
        raise _not_ready("no process serves yet" if call.system.accepting else "a shutdown has begun")
    ready = documents_of(replies, Ready)
    if not ready:
        raise _not_ready(f"{next(iter(replies.values())).detail}{failing(call.system)}")
    document = next(iter(ready.values()))
    document.processes, document.processes_ready = call.system.processes, len(ready)
    return _answer(call, document)


@operation(
    "GET",
    "/readyz",
    gives=Ready,
    query=(TruthQuery("verbose", "show the sources of workers too"),),
    problems={503: "no worker is ready, or the gateway is starting or stopping; detail says which"},
    processes=OverProcesses(_ready_somewhere),
)
async def ready(call: Call) -> Answer:
    """Can requests be served?"""
    if not call.system.accepting:
        raise _not_ready("the public port is not open, or a shutdown has begun")
    endpoints, serving = call.process.fleet.endpoints, call.process.fleet.serving
    if not serving:
        states = [f"{endpoint.id} is {endpoint.state} ({endpoint.reason})" for endpoint in islice(endpoints, _NAMED)]
        more = [f"and {len(endpoints) - _NAMED} more"] if len(endpoints) > _NAMED else []
        detail = ", ".join(states + more) or "none is configured"
        raise _not_ready(f"no worker is ready: {detail}{failing(call.system)}")
    return _answer(call, Ready(workers_ready=serving, workers=len(endpoints)))


def _answer(call: Call, document: Ready) -> Answer:
    document.alone = is_alone(call)
    document.sources = described_sources(call.system) if call.query["verbose"] else None
    return Answer(document)


@operation("GET", "/metrics", media_type="text/plain")
async def metrics(call: Call) -> Answer:
    """All metrics: OpenMetrics with exemplars if Accept asks for it, else Prometheus text format."""
    text, media_type = await call.system.exposition(call.accept)
    return Answer(text, media_type=media_type)


@read("config", Config)
async def get_config(call: Call) -> Answer:
    """The settings in effect, without secrets."""
    system = call.system
    return Answer(to_builtins(with_live_settings(system.config, system.control.state.settings)))


def _not_ready(reason: str) -> AdminError:
    return AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", reason, headers={"retry-after": "1"})

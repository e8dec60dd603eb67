"""The fleet: who is in it, how each worker does, and changes by the operator."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import quote

from backends.worker import parse_endpoint
from router.admin.description import describe_workers
from router.admin.documents import NewWorker, Workers
from router.admin.operations import Answer, Call
from router.admin.problems import AdminError, invalid, not_found
from router.config.model import WorkerConfig
from router.config.semantics import worker_findings
from router.core.fleet import FleetEndpoint


async def list_all(call: Call) -> Answer:
    """Every worker."""
    return Answer(Workers(workers=describe_workers(call.system, call.system.fleet.endpoints)))


async def show(call: Call) -> Answer:
    """One worker."""
    return Answer(describe_workers(call.system, (_find(call),))[0])


async def add(call: Call) -> Answer:
    """Validate, then let it join; probes decide when it takes requests."""
    wanted: NewWorker = call.body
    worker = WorkerConfig(url=wanted.url, kv_events=wanted.kv_events, api_key=wanted.api_key)
    for path, problem, fix in worker_findings(worker, ()):
        raise invalid(f"{'.'.join(map(str, path))}: {problem}; {fix}")
    worker_id = parse_endpoint(worker.url).authority
    if call.system.fleet.get(worker_id) is not None:
        raise _there_already(worker_id)
    try:
        endpoint = await call.system.add_worker(worker)
    except KeyError:
        raise _there_already(worker_id) from None
    location = f"/admin/v1/workers/{quote(endpoint.id)}"
    return Answer(describe_workers(call.system, (endpoint,))[0], HTTPStatus.CREATED, {"location": location})


async def remove(call: Call) -> Answer:
    """Forget it."""
    endpoint = _find(call)
    try:
        await call.system.remove_worker(endpoint.id)
    except KeyError:
        raise _unknown(endpoint.id) from None
    return Answer(None, HTTPStatus.NO_CONTENT)


async def drain(call: Call) -> Answer:
    """Nothing new goes there."""
    return _change(call, call.system.fleet.drain)


async def undrain(call: Call) -> Answer:
    """Requests may go there again."""
    return _change(call, call.system.fleet.undrain)


def _change(call: Call, change: Callable[[str], None]) -> Answer:
    endpoint = _find(call)
    change(endpoint.id)
    return Answer(describe_workers(call.system, (endpoint,))[0])


def _find(call: Call) -> FleetEndpoint:
    worker_id = call.path["id"]
    endpoint = call.system.fleet.get(worker_id)
    if endpoint is None:
        raise _unknown(worker_id)
    return endpoint


def _unknown(worker_id: str) -> AdminError:
    return not_found(f"worker {worker_id!r}", "GET /admin/v1/workers lists all; ids are host:port")


def _there_already(worker_id: str) -> AdminError:
    detail = f"{worker_id} is in the fleet already; DELETE it first to add it with other settings"
    return AdminError(HTTPStatus.CONFLICT, "worker_exists", detail)

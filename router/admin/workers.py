"""List, show, add, remove, drain and undrain workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import quote

from backends.worker import parse_endpoint
from router.admin.description import describe_workers
from router.admin.documents import NewWorker, Workers
from router.admin.operations import Answer, Call
from router.admin.paging import page_of
from router.admin.problems import AdminError, handed_over, invalid, not_found
from router.admin.system import AdminSystem, HandoverState
from router.config.model import WorkerConfig
from router.placement.fleet import FleetEndpoint
from router.placement.health import SERVING
from router.workers.settings import worker_findings

_LOOK_S = 0.02
"""Interval between two checks while a call waits."""


async def list_all(call: Call) -> Answer:
    """Answer with one page of the workers."""
    endpoints, cursor = page_of(
        call.system.fleet.endpoints, lambda endpoint: endpoint.id, call.query["limit"], call.query["cursor"]
    )
    return Answer(Workers(workers=describe_workers(call.system, endpoints), next=cursor))


async def show(call: Call) -> Answer:
    """Answer with one worker."""
    return Answer(describe_workers(call.system, (_find(call),))[0])


async def add(call: Call) -> Answer:
    """Validate the worker and add it. Probes decide when it takes requests."""
    wanted: NewWorker = call.body
    worker = configured(wanted)
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


def configured(wanted: NewWorker) -> WorkerConfig:
    """Return the worker as a setting."""
    return WorkerConfig(url=wanted.url, kv_events=wanted.kv_events, api_key=wanted.api_key, labels=dict(wanted.labels))


async def remove(call: Call) -> Answer:
    """Remove the worker at once."""
    endpoint = _find(call)
    try:
        await call.system.remove_worker(endpoint.id)
    except KeyError:
        raise _unknown(endpoint.id) from None
    return Answer(None, HTTPStatus.NO_CONTENT)


async def drain(call: Call) -> Answer:
    """Send the worker no new requests; with ``wait_s``, answer once no request is there."""
    endpoint, wait_s = _find(call), call.query["wait_s"]
    call.system.fleet.drain(endpoint.id)
    if wait_s:
        await _within(wait_s, lambda: _settled(call.system, endpoint))
        if call.system.handover_state is HandoverState.DONE:
            raise handed_over()
        if not endpoint.draining:
            raise AdminError(HTTPStatus.CONFLICT, "undrained", f"{endpoint.id} was undrained meanwhile")
        if not _settled(call.system, endpoint):
            raise still_busy(endpoint.id, _in_flight(call.system, endpoint), wait_s)
    return Answer(describe_workers(call.system, (endpoint,))[0])


def _settled(system: AdminSystem, endpoint: FleetEndpoint) -> bool:
    """Return whether no request is at the worker, or waiting is over for another reason.

    A process that is about to take over may not know of the drain and may place requests. So the drain has not ended
    before the takeover has.
    """
    if system.handover_state is HandoverState.DONE or not endpoint.draining:
        return True
    quiet = system.drained_everywhere(endpoint.id) and not _in_flight(system, endpoint)
    return quiet and system.handover_state is HandoverState.NONE


def _in_flight(system: AdminSystem, endpoint: FleetEndpoint) -> int:
    return system.in_flight().get(endpoint.id, 0)


async def undrain(call: Call) -> Answer:
    """Send the worker requests again; with ``wait_s``, answer once it takes them."""
    endpoint, wait_s = _find(call), call.query["wait_s"]
    call.system.fleet.undrain(endpoint.id)
    if wait_s and not await _within(wait_s, lambda: endpoint.state in SERVING):
        raise still_not_ready(endpoint.id, endpoint.state, endpoint.reason, wait_s)
    return Answer(describe_workers(call.system, (endpoint,))[0])


def still_busy(worker_id: str, requests: int, wait_s: int) -> AdminError:
    """Return 409: requests are still at the worker after `wait_s`."""
    detail = f"{requests} requests are at {worker_id} after {wait_s} s; it stays drained; ask again to wait longer"
    return AdminError(HTTPStatus.CONFLICT, "worker_busy", detail)


def still_not_ready(worker_id: str, state: str, reason: str, wait_s: int) -> AdminError:
    """Return 409: the worker is not ready after `wait_s`."""
    detail = f"{worker_id} is {state} after {wait_s} s ({reason}); it takes requests once ready"
    return AdminError(HTTPStatus.CONFLICT, "worker_not_ready", detail)


async def _within(wait_s: float, condition: Callable[[], bool]) -> bool:
    """Return whether `condition` became true in time. The ledger has no event for "empty", so this polls."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + wait_s
    while not condition():
        if loop.time() >= end_s:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


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

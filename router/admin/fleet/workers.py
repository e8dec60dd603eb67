"""List, show, add, change, remove, drain and undrain workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from router.admin import changes
from router.admin.documents import Worker, Workers
from router.admin.fleet.description import describe_workers
from router.admin.fleet.sources import described_sources
from router.admin.http.paging import page_of
from router.admin.http.problems import AdminError, handed_over
from router.admin.operations import Answer, Call
from router.admin.system import AdminSystem, TakeoverState
from router.admin.watch import Watch
from router.placement.fleet.fleet import FleetEndpoint
from router.placement.fleet.health import SERVING

_LOOK_S = 0.02
"""Interval between two checks while a call waits."""


WATCHED = Watch("workers", "id")


async def list_all(call: Call) -> Answer:
    endpoints, cursor = page_of(
        call.system.fleet.endpoints, lambda endpoint: endpoint.id, call.query["limit"], call.query["cursor"]
    )
    workers = Workers(
        workers=describe_workers(call.system, endpoints), next=cursor, sources=described_sources(call.system)
    )
    return changes.versioned(call, Answer(workers))


async def show(call: Call) -> Answer:
    return changes.versioned(call, Answer(_shown(call, call.path["id"])))


async def add(call: Call) -> Answer:
    """Validate the worker and add it. Probes decide when it takes requests."""
    name, outcome = await changes.add_worker(call)
    if call.dry_run:
        return changes.dry(outcome)
    answer = Answer(_shown(call, name), HTTPStatus.CREATED, {"location": changes.location_of(name)})
    return changes.done(outcome, answer)


async def change(call: Call) -> Answer:
    """Change settings of the worker in place."""
    outcome = await changes.change_worker(call)
    if call.dry_run:
        return changes.dry(outcome)
    return changes.done(outcome, Answer(_shown(call, call.path["id"])))


async def remove(call: Call) -> Answer:
    """Remove the worker at once."""
    outcome = await changes.remove_worker(call)
    return changes.dry(outcome) if call.dry_run else changes.done(outcome, Answer(None, HTTPStatus.NO_CONTENT))


async def drain(call: Call) -> Answer:
    """Send the worker no new requests; with ``wait_s``, answer once no request is there."""
    outcome = await changes.set_maintenance(call, True)
    if call.dry_run:
        return changes.dry(outcome)
    endpoint, wait_s = _find(call, call.path["id"]), call.query["wait_s"]
    if wait_s:
        await _within(wait_s, lambda: _settled(call.system, endpoint))
        if call.system.takeover_state is TakeoverState.DONE:
            raise handed_over()
        if not endpoint.draining:
            raise AdminError(HTTPStatus.CONFLICT, "undrained", f"{endpoint.id} was undrained meanwhile")
        if not _settled(call.system, endpoint):
            raise still_busy(endpoint.id, _in_flight(call.system, endpoint), wait_s)
    return changes.done(outcome, Answer(describe_workers(call.system, (endpoint,))[0]))


def _settled(system: AdminSystem, endpoint: FleetEndpoint) -> bool:
    """Return whether no request is at the worker, or waiting is over for another reason.

    A process that is about to take over may not know of the drain and may place requests. So the drain has not ended
    before the takeover has.
    """
    if system.takeover_state is TakeoverState.DONE or not endpoint.draining:
        return True
    quiet = system.drained_everywhere(endpoint.id) and not _in_flight(system, endpoint)
    return quiet and system.takeover_state is TakeoverState.NONE


def _in_flight(system: AdminSystem, endpoint: FleetEndpoint) -> int:
    return system.in_flight().get(endpoint.id, 0)


async def undrain(call: Call) -> Answer:
    """Send the worker requests again; with ``wait_s``, answer once it takes them."""
    outcome = await changes.set_maintenance(call, False)
    if call.dry_run:
        return changes.dry(outcome)
    endpoint, wait_s = _find(call, call.path["id"]), call.query["wait_s"]
    if wait_s and not await _within(wait_s, lambda: endpoint.state in SERVING):
        raise still_not_ready(endpoint.id, endpoint.state, endpoint.reason, wait_s)
    return changes.done(outcome, Answer(describe_workers(call.system, (endpoint,))[0]))


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


def _shown(call: Call, name: str) -> Worker:
    return describe_workers(call.system, (_find(call, name),))[0]


def _find(call: Call, name: str) -> FleetEndpoint:
    endpoint = call.system.fleet.get(name)
    if endpoint is None:
        raise changes.unknown_worker(name)
    return endpoint

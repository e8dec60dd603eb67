"""Sources of workers as documents, and the registrations of workers at this port."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec.structs import replace

from backends.discovery.registered import NoRoomError
from backends.discovery.registration import Registration, decode
from backends.worker import parse_endpoint
from router.admin.documents import NewRegistration, RegistrationDocument, SourceDocument, Worker
from router.admin.http.problems import AdminError, invalid, not_found
from router.admin.operations import Answer, Call
from router.admin.system import AdminSystem
from router.config.model import DiscoverySourceConfig
from router.discovery.networks import AddressNotAllowedError, check_addresses
from router.discovery.workers import settings_of

_LEAVING = "no source names it any more: it gets no new requests, and leaves once it has none"


async def register(call: Call) -> Answer:
    """Add a worker for the time of its lease, or renew the lease."""
    wanted: NewRegistration = call.body
    registration = _registration(wanted)
    if registration.worker_id != call.path["id"]:
        raise invalid(f"the url names {registration.worker_id}, and the path {call.path['id']!r}; write one address")
    assert call.system.discovery is not None, "one of several processes takes no registrations"
    registered = call.system.discovery.registered
    renewal = registered.holds(registration)
    try:
        check_addresses(registration, call.system.discovery.registration_networks)
        new = registered.register(registration, wanted.ttl_s)
    except AddressNotAllowedError as error:
        raise AdminError(HTTPStatus.FORBIDDEN, "address_not_allowed", str(error)) from None
    except NoRoomError as error:
        raise AdminError(HTTPStatus.INSUFFICIENT_STORAGE, "too_many_registrations", str(error)) from None
    document = RegistrationDocument(id=registration.worker_id, ttl_s=wanted.ttl_s)
    return Answer(document, HTTPStatus.CREATED if new else HTTPStatus.OK, renewal=renewal)


async def deregister(call: Call) -> Answer:
    """End a registration. Its worker is drained, and leaves."""
    assert call.system.discovery is not None, "one of several processes takes no registrations"
    if not call.system.discovery.registered.deregister(call.path["id"]):
        raise not_found(f"registration {call.path['id'][:200]!r}", "GET /admin/v1/workers lists all workers")
    return Answer(None, HTTPStatus.NO_CONTENT)


def described_sources(system: AdminSystem) -> list[SourceDocument]:
    if system.discovery is None:
        return []
    return [_source(name, state) for name, state in system.discovery.statistics().items()]


def with_source(system: AdminSystem, worker: Worker) -> Worker:
    source, also = system.control.origin_of(worker.id)
    found = system.control.state.discovered.get(worker.id)
    if found is None or not found.leaving:
        return replace(worker, source=source, also=list(also))
    return replace(worker, source=source, also=list(also), leaving=True, reason=_LEAVING)


def failing(system: AdminSystem) -> str:
    """Return what is wrong with sources, for a gateway without workers; empty if nothing is."""
    wrong = [
        f"{one.name} {one.error if one.state == 'failing' else 'has not answered so far'}"
        for one in described_sources(system)
        if one.state == "failing" or (one.state == "waiting" and one.kind != "registered")
    ]
    return f"; sources of workers: {', '.join(wrong)}" if wrong else ""


def _registration(wanted: NewRegistration) -> Registration:
    try:
        fields = msgspec.to_builtins(wanted)
        registration = decode(msgspec.json.encode({name: fields[name] for name in Registration.__struct_fields__}))
        parse_endpoint(registration.url)
        settings_of(registration, DiscoverySourceConfig())
    except ValueError as error:
        raise invalid(str(error)) from None
    return registration


def _source(name: str, state: Mapping[str, Any]) -> SourceDocument:
    fails = state["failing_since"] is not None
    now = "failing" if fails else "ok" if state["answered"] else "waiting"
    times = {key: _time(state[key]) for key in ("changed_at", "failing_since")}
    rest = {key: state[key] for key in SourceDocument.__struct_fields__ if key in state and key not in times}
    document: SourceDocument = msgspec.convert({"name": name, "state": now, **times, **rest}, SourceDocument)
    return document


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")

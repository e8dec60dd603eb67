"""Sources of workers as documents, and the registrations of workers at this port."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from backends.discovery.registered import NoRoomError
from backends.discovery.registration import LEASE_S, KvEvents, Registration, decode
from backends.worker import parse_endpoint
from router.admin.documents import Body, Shape
from router.admin.fleet.worker_documents import Worker
from router.admin.http.problems import AdminError, invalid, not_found
from router.admin.operations import Answer, Call, operation
from router.admin.system import AdminView
from router.config.model import DiscoverySourceConfig
from router.discovery.networks import AddressNotAllowedError, check_addresses
from router.discovery.workers import settings_of
from router.security.token import Role

_PATH = "/admin/v1/registrations/{id}"
_LEAVING = "no source names it any more: it gets no new requests, and leaves once it has none"


class SourceDocument(Shape):
    """One source of workers. `state` is ok, failing, or waiting for its first answer.

    A source that fails keeps the workers of its last answer; `failing_since` and `error` say since when and why, and
    `error` stays after the source has recovered. `refused` counts entries that cannot be used, `refused_first` names
    some.
    """

    name: str
    kind: str
    state: Literal["ok", "failing", "waiting"]
    workers: int
    changed_at: str | None
    failing_since: str | None
    error: str | None
    failures: int
    refused: int
    refused_first: list[str]


class NewRegistration(Body):
    """A worker that registers itself for `ttl_s` seconds. It registers again before they have passed.

    The fields are those of a worker in `discovery`. `started_at` is in seconds since 1970.
    """

    url: str
    name: str | None = None
    model: str | None = None
    role: str | None = None
    weight: float | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    kv_events: KvEvents | None = None
    started_at: float | None = None
    ttl_s: Annotated[float, msgspec.Meta(ge=1, le=3600)] = LEASE_S


class RegistrationDocument(Shape):
    """A registration, which lasts for `ttl_s` seconds from now."""

    id: str
    ttl_s: float


@operation(
    "PUT",
    _PATH,
    role=Role.REGISTER,
    takes=NewRegistration,
    gives=RegistrationDocument,
    further=(HTTPStatus.CREATED,),
    problems={
        403: "discovery.registration_networks does not have an address of the worker",
        507: "there are 20,000 registrations already",
    },
)
async def register_worker(call: Call) -> Answer:
    """Register a worker for ttl_s seconds, or renew its registration. 201: it is new. Only changes are audited."""
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


@operation("DELETE", _PATH, role=Role.REGISTER, status=HTTPStatus.NO_CONTENT, problems={404: "no such registration"})
async def deregister_worker(call: Call) -> Answer:
    """End a registration. The worker gets no new requests, and leaves once it has none."""
    assert call.system.discovery is not None, "one of several processes takes no registrations"
    if not call.system.discovery.registered.deregister(call.path["id"]):
        raise not_found(f"registration {call.path['id'][:200]!r}", "GET /admin/v1/workers lists all workers")
    return Answer(None, HTTPStatus.NO_CONTENT)


def described_sources(system: AdminView) -> list[SourceDocument]:
    if system.discovery is None:
        return []
    return [_source(name, state) for name, state in system.discovery.statistics().items()]


def with_source(system: AdminView, worker: Worker) -> Worker:
    source, also = system.control.origin_of(worker.id)
    found = system.control.state.discovered.get(worker.id)
    if found is None or not found.leaving:
        return replace(worker, source=source, also=list(also))
    return replace(worker, source=source, also=list(also), leaving=True, reason=_LEAVING)


def failing(system: AdminView) -> str:
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

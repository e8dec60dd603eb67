"""One operation of the admin API: the same declaration routes it, checks it and documents it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Any, Literal, TypeAlias, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from backends.foreign_json import read_json
from router.admin.audit_log import AuditLog, Serve, audited, summary_of
from router.admin.documents import DifferenceDocument
from router.admin.http.body_problems import fix_of
from router.admin.http.negotiation import accepts
from router.admin.http.parameters import Parameter, TruthQuery
from router.admin.http.probe_slots import ProbeSlots
from router.admin.http.problems import MEDIA_TYPE as PROBLEM
from router.admin.http.problems import AdminError, handed_over, invalid
from router.admin.planner.run import PlannerRuns
from router.admin.replies import Replies, Reply
from router.admin.system import AdminView, ProcessView, TakeoverState
from router.admin.watch import MEDIA_TYPE as EVENT_STREAM
from router.admin.watch import EventStream, Watch, Watchers, events_of
from router.security.token import AdminCaller, Role

MAX_BODY_BYTES = 1_000_000
_CONDITIONS = ("if-match", "if-none-match", "if-unmodified-since")
"""Headers that a change may depend on."""
_SHOWN_CHARACTERS = 200
DRY_RUN = TruthQuery("dry_run", "answer with the differences that the change would make, and change nothing")


@dataclass(frozen=True, slots=True)
class Port:
    """One admin port: the gateway behind it, its audit, its open streams, probes and plan, and its operations by
    name."""

    system: AdminView
    operations: Mapping[str, Operation]
    audit: AuditLog = field(default_factory=AuditLog)
    watchers: Watchers = field(default_factory=Watchers)
    probes: ProbeSlots = field(default_factory=ProbeSlots)
    planner: PlannerRuns = field(default_factory=PlannerRuns)


@dataclass(frozen=True, slots=True)
class Call:
    """One request to an operation: path parameters, the value of each query parameter, and the decoded body.

    `raw` is the body as it came, `if_match` is the If-Match header, `who` and `role` are those of the caller's token,
    and `accept` is the Accept header.
    """

    port: Port
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Any = None
    if_match: str | None = None
    who: str | None = None
    accept: str = ""
    role: Role | None = None
    raw: bytes = b""

    @property
    def system(self) -> AdminView:
        return self.port.system

    @property
    def process(self) -> ProcessView:
        """The process that answers. Only for operations that are not answered by a supervisor itself."""
        return cast(ProcessView, self.port.system)

    @property
    def dry_run(self) -> bool:
        """Whether the change shall only be shown."""
        return bool(self.query.get("dry_run"))

    async def shown(self, read: Operation, path: Mapping[str, str]) -> Answer:
        """Return the present answer of an operation that has no query."""
        return await self.port.operations[read.name].handle(replace(self, path=path, query={}, body=None))


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of an operation. `content` is encoded as JSON; None means no content; bytes are sent unchanged.

    `differences` are what the operation changed, for the audit. The audit gets no entry for a `renewal`, which callers
    repeat every few seconds and which changes nothing.
    """

    content: Any
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)
    media_type: str = "application/json"
    differences: Sequence[DifferenceDocument] = ()
    renewal: bool = False


Handle: TypeAlias = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class OverProcesses:
    """How the answers of several processes to one call become its answer.

    `query` gives the query of one process, by its number; default: that of the call. Each has `limit_s` to answer.
    """

    answer: Callable[[Call, Replies], Answer]
    query: Callable[[Call, int], Mapping[str, Any]] = lambda call, _: call.query
    limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. A token needs a role that includes `role`. `problems` maps an error status to
    its reason. `further` are other good statuses. A body has at most `most_body_bytes`. An operation that
    `changes_state` takes If-Match. One that is `versioned` shows a part of the desired state, and answers with its
    ETag. A list with `watch` can be a stream of events.

    `processes`: of several processes, their supervisor answers (one), or the first process that does (first), or the
    answers of all are merged.
    """

    method: str
    path: str
    name: str
    summary: str
    handle: Handle
    role: Role = Role.READ
    takes: Any = None
    gives: Any = None
    status: HTTPStatus = HTTPStatus.OK
    further: tuple[HTTPStatus, ...] = ()
    query: tuple[Parameter, ...] = ()
    problems: Mapping[int, str] = field(default_factory=dict)
    media_type: str = "application/json"
    changes_state: bool = False
    versioned: bool = False
    watch: Watch | None = None
    processes: Literal["one", "first"] | OverProcesses = "one"
    most_body_bytes: int = MAX_BODY_BYTES

    @property
    def negotiates(self) -> bool:
        """Whether the Accept header must allow its media type. Probes and scrapes are answered whatever it says."""
        return self.path.startswith("/admin/")

    @property
    def changes(self) -> bool:
        return self.role is not Role.READ


def operation(
    method: str, path: str, *, name: str = "", summary: str = "", **declared: Any
) -> Callable[[Handle], Operation]:
    """Make an operation of the function below: with its name, and its docstring as the summary, unless given."""

    def declare(handle: Handle) -> Operation:
        about = summary or " ".join((handle.__doc__ or "").split())
        return Operation(method, path, name or handle.__name__, about, handle, **declared)

    return declare


def read(path: str, gives: Any, **declared: Any) -> Callable[[Handle], Operation]:
    return operation("GET", f"/admin/v1/{path}", gives=gives, **declared)


def change(method: str, path: str, **declared: Any) -> Callable[[Handle], Operation]:
    """Make an operation that changes the desired state."""
    declared = {"role": Role.ADMIN, "query": (DRY_RUN,), "changes_state": True, **declared}
    if method == "DELETE":
        declared["status"] = HTTPStatus.NO_CONTENT
    return operation(method, f"/admin/v1/{path}", **declared)


def endpoint(operation: Operation, port: Port, *, recorded: bool) -> Serve:
    """Return the Starlette endpoint of `operation`. If `recorded`, a change is recorded in the audit."""

    async def serve(request: Request) -> Response:
        check_role(request, operation)
        check(request, operation.query, changes_state=operation.changes_state)
        if port.system.takeover_state is TakeoverState.DONE and operation.method != "GET":
            raise handed_over()
        given = request.query_params
        query = {parameter.name: parameter.read(given.get(parameter.name)) for parameter in operation.query}
        watched = operation.watch is not None and query["watch"] and request.method != "HEAD"
        if operation.negotiates:
            check_accept(request, EVENT_STREAM if watched else operation.media_type)
        raw = await _bounded(request, operation.most_body_bytes)
        body = _decode(raw, operation.takes) if operation.takes is not None else None
        if operation.changes and body is not None:
            request.state.change = summary_of(body)
        if_match, caller = request.headers.get("if-match"), _caller(request)
        who, role = (None, None) if caller is None else (caller.name, caller.role)
        accept = ",".join(request.headers.getlist("accept"))
        call = Call(port, request.path_params, query, body, if_match, who, accept, role, raw)
        if operation.watch is not None and watched:
            return await _watched(operation, operation.watch, call)
        answer = await operation.handle(call)
        if operation.versioned and answer.status < 400:
            answer = replace(answer, headers={**answer.headers, "etag": port.system.control.state.tag})
        request.state.differences, request.state.renewal = answer.differences, answer.renewal
        return _response(answer)

    if not (operation.changes and recorded):
        return serve
    audit = port.audit
    return audited(serve, operation.name, audit.registered if operation.role is Role.REGISTER else audit.ended)


def forwarded(reply: Reply) -> Answer:
    """Return the reply of one process as the answer."""
    headers = {name: reply.headers[name] for name in ("location", "retry-after") if name in reply.headers}
    media_type = "application/json" if reply.is_success else PROBLEM
    return Answer(reply.content or None, HTTPStatus(reply.status_code), headers, media_type)


async def _watched(operation: Operation, watch: Watch, call: Call) -> Response:
    if call.query["cursor"] is not None:
        raise invalid("watch and cursor are both given; a watch starts at the first page")
    once = replace(call, query={**call.query, **watch.query, "watch": False})
    limit = min(call.query["limit"], watch.most)
    later = replace(once, query={**once.query, "limit": watch.most if watch.newest_first else limit})

    async def read(call: Call) -> bytes:
        return _encoded((await operation.handle(call)).content)

    first = await read(replace(once, query={**once.query, "limit": limit}))
    return EventStream(events_of(watch, first, partial(read, later), call.system), call.port.watchers)


def check_role(request: Request, operation: Operation) -> None:
    """Refuse a caller whose role does not include the one that the operation needs.

    Raises:
        AdminError: 403, with the role that is needed.
    """
    caller = _caller(request)
    if caller is not None and not caller.role.includes(operation.role):
        needs = f"{operation.method} {request.url.path} needs a token with the role {operation.role}"
        detail = f"{needs}; the token {caller.name} has the role {caller.role}"
        raise AdminError(HTTPStatus.FORBIDDEN, "role_not_allowed", detail)


def check(request: Request, known: Sequence[Parameter] = (), *, changes_state: bool = False) -> None:
    """Refuse parameters and headers that would otherwise be ignored.

    Raises:
        AdminError: 400 for a query parameter that is not `known` or comes twice; 501 for a condition.
    """
    names = [parameter.name for parameter in known]
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in names:
            takes = f"it takes {', '.join(names)}" if names else "it takes none"
            detail = f"{request.method} {request.url.path} has no query parameter {name[:40]!r}; {takes}"
            raise AdminError(HTTPStatus.BAD_REQUEST, "unknown_parameter", detail)
        if given.count(name) > 1:
            detail = f"the query parameter {name} is given {given.count(name)} times; give it once"
            raise AdminError(HTTPStatus.BAD_REQUEST, "repeated_parameter", detail)
    conditions = ("if-match",) if request.method in ("GET", "HEAD") else _CONDITIONS
    for name in conditions:
        if name in request.headers and not (changes_state and name == "if-match"):
            detail = f"{name.title()} is not supported here; send the request without it"
            raise AdminError(HTTPStatus.NOT_IMPLEMENTED, "condition_not_supported", detail)


def check_accept(request: Request, media_type: str) -> None:
    """Refuse a request whose Accept header does not allow the answer's media type.

    Raises:
        AdminError: 406, with the media type.
    """
    accept = ",".join(request.headers.getlist("accept"))
    if not accepts(accept, media_type):
        hint = "; ?watch=true makes a stream of a list" if EVENT_STREAM in accept else ""
        detail = (
            f"the answer is {media_type}, and Accept is {accept[:_SHOWN_CHARACTERS]!r}; add {media_type} to it{hint}"
        )
        raise AdminError(HTTPStatus.NOT_ACCEPTABLE, "not_acceptable", detail)


def _caller(request: Request) -> AdminCaller | None:
    caller: AdminCaller | None = getattr(request.state, "caller", None)
    return caller


def _response(answer: Answer) -> Response:
    content = None if answer.content is None else _encoded(answer.content)
    media_type = None if content is None else answer.media_type
    return Response(content, answer.status, {"cache-control": "no-store", **answer.headers}, media_type)


def _encoded(content: Any) -> bytes:
    return content if isinstance(content, bytes) else msgspec.json.encode(content)


async def _bounded(request: Request, most_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most_bytes:
            detail = f"the body is larger than {most_bytes} bytes"
            raise AdminError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", detail)
    return bytes(body)


def _decode(raw: bytes, kind: Any) -> Any:
    try:
        return read_json(raw, kind)
    except msgspec.ValidationError as error:
        raise invalid(f"the body does not fit: {error}{fix_of(str(error), kind)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        detail = f"the body is not JSON: {error}" if raw else "a JSON body is needed"
        raise AdminError(HTTPStatus.BAD_REQUEST, "invalid_json", detail) from None

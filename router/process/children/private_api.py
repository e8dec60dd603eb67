"""What a child answers on its private socket to its supervisor alone, and the supervisor's side of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backends.foreign_json import read_json
from backends.vllm.operations import WorkerOperation
from router.admin.fleet.workers import Workers
from router.admin.http.problems import AdminError, no_process, problem_response
from router.control.change import NotAppliedError
from router.control.control import Control
from router.control.state.desired_state import DesiredState, LiveSettings
from router.diagnosis import facts, measured
from router.diagnosis.facts import Facts
from router.diagnosis.measured import Measured
from router.process.children.child_client import (
    STATE_VERSION,
    ChildClient,
    ChildRequest,
    NoReplyError,
    ask_all,
)
from router.telemetry.snapshot import Snapshot
from router.workers.operations import WorkerOperations, WorkerOutcome

_METRICS = "/private/readings"
_IN_FLIGHT = "/private/in-flight"
_KNOWN = "/private/measured"
_STATE = "/private/desired-state"
_PREPARE = "/private/desired-state/prepare"
_RUN = "/private/worker-operations/run"
_FOLLOW = "/private/worker-operations/follow"
_MARGIN_S = 5.0
T = TypeVar("T")


class ProcessKnows(msgspec.Struct, frozen=True):
    """What one process, or all of them, have for a diagnosis beside the metrics."""

    measured: Measured
    facts: Facts


class _Wanted(msgspec.Struct):
    operation: WorkerOperation
    workers: list[str]


def private_routes(
    metrics: Callable[[], Snapshot],
    in_flight: Callable[[], Mapping[str, int]],
    known: Callable[[], ProcessKnows],
    control: Control,
    prepare: Callable[[LiveSettings], Awaitable[None]],
    operations: WorkerOperations,
) -> list[Route]:
    """Return the routes of a child.

    `in_flight` returns the requests at each worker. `prepare` does the slow work of a change in advance; it raises
    `NotAppliedError` if that cannot be done.
    """

    async def run(request: Request) -> Response:
        wanted = read_json(await request.body(), _Wanted)
        return _msgpack(await operations.run(wanted.operation, wanted.workers))

    async def follow(request: Request) -> Response:
        wanted = read_json(await request.body(), _Wanted)
        operations.follow(wanted.operation, wanted.workers)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    return [
        _read(_METRICS, metrics),
        _read(_IN_FLIGHT, in_flight),
        _read(_KNOWN, known),
        _change(_STATE, control.follow),
        _change(_PREPARE, lambda state: prepare(state.settings)),
        Route(_RUN, run, methods=["POST"]),
        Route(_FOLLOW, follow, methods=["POST"]),
    ]


def _msgpack(value: object) -> Response:
    return Response(msgspec.msgpack.encode(value), media_type="application/msgpack")


def _read(path: str, value: Callable[[], object]) -> Route:
    async def answer(_: Request) -> Response:
        return _msgpack(value())

    return Route(path, answer)


def _change(path: str, use: Callable[[DesiredState], Awaitable[None]]) -> Route:
    async def answer(request: Request) -> Response:
        try:
            await use(read_json(await request.body(), DesiredState))
        except NotAppliedError as error:
            return problem_response(AdminError(HTTPStatus.CONFLICT, "not_applied", str(error)))
        return Response(status_code=HTTPStatus.NO_CONTENT)

    return Route(path, answer, methods=["PUT"])


def with_version(app: ASGIApp, control: Control) -> ASGIApp:
    """Return `app` with the version of the state that the process runs in every response."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def versioned(message: Message) -> None:
            if message["type"] == "http.response.start":
                version = control.state.mark.encode()
                message["headers"] = [*message["headers"], (STATE_VERSION.encode(), version)]
            await send(message)

        await app(scope, receive, versioned)

    return answer


def state_request(state: DesiredState) -> ChildRequest:
    """Return the request that brings a child to `state`. It has the whole state, whatever the child had before."""
    return ChildRequest("PUT", _STATE, body=msgspec.json.encode(state))


def prepare_request(state: DesiredState) -> ChildRequest:
    """Return the request by which a child does the slow work of `state` in advance, and changes nothing."""
    return ChildRequest("PUT", _PREPARE, body=msgspec.json.encode(state))


async def _answers(clients: Iterable[ChildClient], path: str, kind: type[T]) -> dict[int, T]:
    """Return the answers by process. Processes without a usable one are left out."""
    answers = await ask_all(clients, ChildRequest("GET", path))
    return {number: msgspec.msgpack.decode(one.content, type=kind) for number, one in answers.items() if one.is_success}


async def metrics_of(clients: Iterable[ChildClient]) -> dict[int, Snapshot]:
    return await _answers(clients, _METRICS, Snapshot)


async def in_flight_of(clients: Sequence[ChildClient]) -> Mapping[str, int] | None:
    """Return the requests at each worker in all processes, or None if one does not say."""
    answers = await _answers(clients, _IN_FLIGHT, dict[str, int])
    return sum(map(Counter, answers.values()), Counter()) if len(answers) == len(clients) else None


async def known_by(clients: Iterable[ChildClient]) -> ProcessKnows | None:
    """Return what the children that answer know; None if none does."""
    parts = await _answers(clients, _KNOWN, ProcessKnows)
    if not parts:
        return None
    return ProcessKnows(
        measured.over_processes([part.measured for part in parts.values()]),
        facts.over_processes({number: part.facts for number, part in parts.items()}),
    )


async def run_in_one(
    clients: Sequence[ChildClient], wanted: WorkerOperation, workers: Sequence[str]
) -> list[WorkerOutcome]:
    """Let the first process call the workers, and all others follow.

    Raises:
        AdminError: no process serves.
    """
    if not clients:
        raise no_process()
    first, *others = clients
    try:
        reply = await first.ask(_request(_RUN, wanted, workers), wanted.limit_s + _MARGIN_S)
    except NoReplyError as error:
        return [WorkerOutcome(worker, "unknown", str(error)) for worker in workers]
    outcomes = msgspec.msgpack.decode(reply.content, type=list[WorkerOutcome])
    done = [each.worker for each in outcomes if each.outcome == "done"]
    await ask_all(others, _request(_FOLLOW, wanted, done))
    return outcomes


def _request(path: str, wanted: WorkerOperation, workers: Sequence[str]) -> ChildRequest:
    return ChildRequest("POST", path, body=msgspec.json.encode(_Wanted(wanted, list(workers))))


async def serving_in_one(clients: Sequence[ChildClient], model: str) -> list[str]:
    """Return the workers that serve `model`, as one process knows them.

    Raises:
        AdminError: no process serves.
    """
    for client in clients:
        try:
            reply = await client.ask(ChildRequest("GET", "/admin/v1/workers"))
        except NoReplyError:
            continue
        workers = read_json(reply.content, Workers).workers
        return [worker.id for worker in workers if any(each.id == model for each in worker.models)]
    raise no_process()

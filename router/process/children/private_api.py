"""What a child answers on its private socket to its supervisor alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backends.foreign_json import read_json
from backends.vllm.operations import WorkerOperation
from router.admin.http.problems import AdminError, problem_response
from router.control.change import NotAppliedError
from router.control.control import Control
from router.control.state.desired_state import DesiredState, LiveSettings
from router.process.children.child_client import STATE_VERSION, ChildRequest
from router.workers.operations import WorkerOperations

METRICS = "/private/readings"
IN_FLIGHT = "/private/in-flight"
KNOWN = "/private/measured"
RUN = "/private/worker-operations/run"
FOLLOW = "/private/worker-operations/follow"
_STATE = "/private/desired-state"
_PREPARE = "/private/desired-state/prepare"


class WantedOperation(msgspec.Struct):
    operation: WorkerOperation
    workers: list[str]


def private_routes(
    reads: Mapping[str, Callable[[], Awaitable[object]]],
    control: Control,
    prepare: Callable[[LiveSettings], Awaitable[None]],
    operations: WorkerOperations,
) -> list[Route]:
    """Return the routes of a child.

    `reads` returns by path what the supervisor reads. `prepare` does the slow work of a change in advance; it raises
    `NotAppliedError` if that cannot be done.
    """

    async def run(request: Request) -> Response:
        wanted = read_json(await request.body(), WantedOperation)
        return _msgpack(await operations.run(wanted.operation, wanted.workers))

    async def follow(request: Request) -> Response:
        wanted = read_json(await request.body(), WantedOperation)
        operations.follow(wanted.operation, wanted.workers)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    return [
        *(_read(path, value) for path, value in reads.items()),
        _change(_STATE, control.follow),
        _change(_PREPARE, lambda state: prepare(state.settings)),
        Route(RUN, run, methods=["POST"]),
        Route(FOLLOW, follow, methods=["POST"]),
    ]


def _msgpack(value: object) -> Response:
    return Response(msgspec.msgpack.encode(value), media_type="application/msgpack")


def _read(path: str, value: Callable[[], Awaitable[object]]) -> Route:
    async def answer(_: Request) -> Response:
        return _msgpack(await value())

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

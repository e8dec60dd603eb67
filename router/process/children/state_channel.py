"""How the desired state gets from the supervisor to a child process, and its version back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backends.foreign_json import read_json
from router.admin.http.problems import AdminError, problem_response
from router.control.change import NotAppliedError
from router.control.control import Control
from router.control.state.desired_state import DesiredState, LiveSettings
from router.process.children.child_client import STATE_VERSION, ChildRequest

STATE_PATH = "/private/desired-state"
PREPARE_PATH = "/private/desired-state/prepare"
Prepare = Callable[[LiveSettings], Awaitable[None]]
"""Do the slow work of a change in advance. Raise `NotAppliedError` if it cannot be done."""


def state_request(state: DesiredState) -> ChildRequest:
    """Return the request that brings a child to `state`. It has the whole state, whatever the child had before."""
    return ChildRequest("PUT", STATE_PATH, body=msgspec.json.encode(state))


def prepare_request(state: DesiredState) -> ChildRequest:
    """Return the request by which a child does the slow work of `state` in advance, and changes nothing."""
    return ChildRequest("PUT", PREPARE_PATH, body=msgspec.json.encode(state))


def prepare_route(prepare: Prepare) -> Route:
    async def ready(request: Request) -> Response:
        state = read_json(await request.body(), DesiredState)
        return await _done(prepare(state.settings))

    return Route(PREPARE_PATH, ready, methods=["PUT"])


def state_route(control: Control) -> Route:
    async def follow(request: Request) -> Response:
        state = read_json(await request.body(), DesiredState)
        return await _done(control.follow(state))

    return Route(STATE_PATH, follow, methods=["PUT"])


async def _done(work: Awaitable[None]) -> Response:
    try:
        await work
    except NotAppliedError as error:
        return problem_response(AdminError(HTTPStatus.CONFLICT, "not_applied", str(error)))
    return Response(status_code=HTTPStatus.NO_CONTENT)


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

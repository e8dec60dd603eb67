"""How the desired state gets from the supervisor to a child process, and its version back."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.admin.problems import AdminError, problem_response
from router.control.control import Control
from router.control.desired_state import DesiredState
from router.control.reconciler import NotAppliedError
from router.process.children.child_client import STATE_VERSION, ChildRequest

STATE_PATH = "/private/desired-state"


def state_request(state: DesiredState) -> ChildRequest:
    """Return the request that brings a child to `state`. It has the whole state, whatever the child had before."""
    return ChildRequest("PUT", STATE_PATH, body=msgspec.json.encode(state))


def state_route(control: Control) -> Route:
    """Return the route of a child that receives the state."""

    async def follow(request: Request) -> Response:
        state = msgspec.json.decode(await request.body(), type=DesiredState)
        try:
            await control.follow(state)
        except NotAppliedError as error:
            return problem_response(AdminError(HTTPStatus.CONFLICT, "not_applied", str(error)))
        return Response(status_code=HTTPStatus.NO_CONTENT)

    return Route(STATE_PATH, follow, methods=["PUT"])


def with_version(app: ASGIApp, control: Control) -> ASGIApp:
    """Return `app` with the version of the state that the process runs in every response."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def versioned(message: Message) -> None:
            if message["type"] == "http.response.start":
                version = str(control.state.version).encode()
                message["headers"] = [*message["headers"], (STATE_VERSION.encode(), version)]
            await send(message)

        await app(scope, receive, versioned)

    return answer

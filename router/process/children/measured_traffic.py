"""What a child has measured of its traffic, on its private socket, and the sum over all children."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router.diagnosis.measured import Measured, over_processes
from router.process.children.child_client import ChildClient, ChildRequest, ask_all

_PATH = "/private/measured"


def measured_route(measured: Callable[[], Measured]) -> Route:
    """Return a route that answers `measured` as msgpack."""

    async def answer(_: Request) -> Response:
        return Response(msgspec.msgpack.encode(measured()), media_type="application/msgpack")

    return Route(_PATH, answer)


async def measured_by(clients: Iterable[ChildClient]) -> Measured | None:
    """Return what the children that answer have measured; None if none does."""
    answers = await ask_all(clients, ChildRequest("GET", _PATH))
    parts = [msgspec.msgpack.decode(one.content, type=Measured) for one in answers.values() if one.is_success]
    return over_processes(parts) if parts else None

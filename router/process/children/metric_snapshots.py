"""The metrics of a child as values, on its private socket."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router.telemetry.snapshot import Snapshot

READINGS_PATH = "/private/readings"


def readings_route(snapshot: Callable[[], Snapshot]) -> Route:
    """Return a route that answers `snapshot` as msgpack."""

    async def readings(_: Request) -> Response:
        return Response(msgspec.msgpack.encode(snapshot()), media_type="application/msgpack")

    return Route(READINGS_PATH, readings)


def decode_readings(body: bytes) -> Snapshot:
    return msgspec.msgpack.decode(body, type=Snapshot)

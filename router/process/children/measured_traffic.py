"""What a child has measured and knows of the workers, on its private socket, and that of all children."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router.diagnosis import facts, measured
from router.diagnosis.facts import Facts
from router.diagnosis.measured import Measured
from router.process.children.child_client import ChildClient, ChildRequest, ask_all

_PATH = "/private/measured"


class ProcessKnows(msgspec.Struct, frozen=True):
    """What one process, or all of them, have for a diagnosis beside the metrics."""

    measured: Measured
    facts: Facts


def measured_route(known: Callable[[], ProcessKnows]) -> Route:
    """Return a route that answers `known` as msgpack."""

    async def answer(_: Request) -> Response:
        return Response(msgspec.msgpack.encode(known()), media_type="application/msgpack")

    return Route(_PATH, answer)


async def known_by(clients: Iterable[ChildClient]) -> ProcessKnows | None:
    """Return what the children that answer know; None if none does."""
    answers = await ask_all(clients, ChildRequest("GET", _PATH))
    parts = {
        number: msgspec.msgpack.decode(one.content, type=ProcessKnows)
        for number, one in answers.items()
        if one.is_success
    }
    if not parts:
        return None
    return ProcessKnows(
        measured.over_processes([part.measured for part in parts.values()]),
        facts.over_processes({number: part.facts for number, part in parts.items()}),
    )

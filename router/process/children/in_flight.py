"""The requests at each worker, of a child, on its private socket."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backends.foreign_json import read_json
from router.process.children.child_client import ChildClient, ChildRequest, ask_all

_PATH = "/private/in-flight"


def in_flight_route(in_flight: Callable[[], Mapping[str, int]]) -> Route:
    """Return a route that answers `in_flight` as JSON."""

    async def answer(_: Request) -> Response:
        return Response(msgspec.json.encode(in_flight()), media_type="application/json")

    return Route(_PATH, answer)


async def in_flight_of(clients: Sequence[ChildClient]) -> Mapping[str, int] | None:
    """Return the requests at each worker in all processes, or None if one does not say."""
    answers = await ask_all(clients, ChildRequest("GET", _PATH))
    if len(answers) < len(clients) or not all(one.is_success for one in answers.values()):
        return None
    total: Counter[str] = Counter()
    for one in answers.values():
        total.update(read_json(one.content, dict[str, int]))
    return total

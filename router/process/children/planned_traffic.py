"""What a child knows for the plan of the workers' roles, on its private socket, and the plan over all children."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import fmean

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router.config.model import Config
from router.diagnosis.measured import Measured, over_processes
from router.diagnosis.split_plan import FleetPlan, PoolMember, plan
from router.placement.links import LinkSpeed
from router.process.children.child_client import ChildClient, ChildRequest, ask_all

_PATH = "/private/planned"


class PlanInputs(msgspec.Struct, frozen=True):
    """The traffic of `handover.plan_window_s`, the workers now, and `LinkSpeed` of links now."""

    measured: Measured
    members: list[PoolMember]
    link: tuple[float, float]


def plan_route(inputs: Callable[[], PlanInputs]) -> Route:
    """Return a route that answers `inputs` as msgpack."""

    async def answer(_: Request) -> Response:
        return Response(msgspec.msgpack.encode(inputs()), media_type="application/msgpack")

    return Route(_PATH, answer)


async def plan_of(clients: Iterable[ChildClient], config: Config) -> FleetPlan | None:
    """Return the plan for what the children that answer have measured; None if none does."""
    answers = await ask_all(clients, ChildRequest("GET", _PATH))
    parts = [msgspec.msgpack.decode(one.content, type=PlanInputs) for one in answers.values() if one.is_success]
    if not parts:
        return None
    measured = over_processes(part.measured for part in parts)
    token_s, latency_s = zip(*(part.link for part in parts), strict=True)
    link = LinkSpeed(fmean(token_s), fmean(latency_s))
    return plan(measured, parts[0].members, config.handover, config.diagnosis.min_requests, link)

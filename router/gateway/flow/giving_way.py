"""A request leaves its worker for one of an earlier class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from router.errors import ErrorKind, RequestError
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.flow.resuming import PREEMPTED, movable
from router.gateway.flow.services import Follows, GatewayServices
from router.gateway.flow.transitions import Event, RequestState
from router.placement.request import FailurePoint
from router.placement.tickets import Held

_WAITS: Final = Held(None, 0.0)


def give_way(
    services: GatewayServices,
    outbound: OutboundRequest,
    begun: bool,
    left: Callable[[bool], None],
) -> Follows:
    """Return what follows; None if the request stays. `begun`: an answer in progress may end or go on elsewhere, too.

    `left` is called with whether the request waits again.
    """
    flow = outbound.flow
    if flow.state is RequestState.WAITING:
        if outbound.plan is not None or outbound.begun or not flow.attempt.unanswered:
            return None
        left(True)
        outbound.ticket = None
        return _WAITS
    if not begun or flow.state is not RequestState.STREAMING:
        return None
    plan = movable(outbound, PREEMPTED)
    moves = services.edges.replaceable(outbound, flow.attempt.ticket, FailurePoint.CONNECT, services.time())
    left(False)
    if plan is not None and moves:
        outbound.resumed, flow.resumes = plan, True
        return Event.HANDED_ON, None
    outbound.error = RequestError(ErrorKind.PREEMPTED, "the worker is needed for a request of an earlier class")
    return Event.STOPPED, None

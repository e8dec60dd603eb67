"""The leg after a death: an answer in progress goes on at another worker, if a feature can continue it."""

from __future__ import annotations

from collections.abc import Container
from time import perf_counter
from typing import Final

from router.gateway.flow.attempt.attempt import Attempt
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.flow.placement_steps import decided, place
from router.gateway.flow.plan import ResumingPlan
from router.gateway.flow.services import GatewayServices
from router.gateway.flow.transitions import RequestState
from router.placement.request import FailurePoint
from router.placement.tickets import Held, Ticket
from router.requests.placing import Placement, Waited
from router.requests.queues.request import WaitingRequest

DRAIN: Final = "drain"
PREEMPTED: Final = "preempted"
"""The triggers of an answer that leaves its worker: nothing has failed."""


class OtherEndpoints:
    """The endpoints `within`, None for all, without the one that is `lost`.

    Those lost before may serve again: they can have been restarted.
    """

    __slots__ = ("_lost", "_within")

    def __init__(self, within: Container[str] | None, lost: str) -> None:
        self._within: Container[str] | None = within._within if isinstance(within, OtherEndpoints) else within
        self._lost = lost

    def __contains__(self, endpoint: object) -> bool:
        return endpoint != self._lost and (self._within is None or endpoint in self._within)


def prepare(outbound: OutboundRequest, attempt: Attempt, trigger: str) -> None:
    """Ask the features how the answer of a failed attempt goes on."""
    outbound.resumed = _resumption(outbound, attempt, trigger)
    outbound.flow.resumes = outbound.resumed is not None


def _resumption(outbound: OutboundRequest, attempt: Attempt, trigger: str) -> ResumingPlan | None:
    relay, preamble = outbound.relay, outbound.relay.preamble()
    for rewrite in outbound.rewrites:
        resumed = rewrite.resumption(attempt, trigger, relay.last_read_s, preamble)
        if resumed is not None:
            assert isinstance(resumed, ResumingPlan)
            return resumed
    return None


def movable(outbound: OutboundRequest, trigger: str) -> ResumingPlan | None:
    """Return how an answer leaves its worker, which drains or is needed; None if it cannot."""
    if outbound.flow.state is not RequestState.STREAMING or not outbound.client.writable:
        return None
    return _resumption(outbound, outbound.flow.attempt, trigger)


def find_place(
    services: GatewayServices, outbound: OutboundRequest, plan: ResumingPlan, waiting: WaitingRequest
) -> bool:
    """Place the rest of an answer that leaves its worker. Return False if it stays there, for want of a place."""
    flow, now_s, within, started_s = outbound.flow, services.time(), outbound.within, perf_counter()
    if not services.edges.replaceable(outbound, flow.attempt.ticket, FailurePoint.CONNECT, now_s):
        return False
    if plan.turn() is not None:
        return False
    outbound.within = OtherEndpoints(within, plan.lost)
    placed = services.placements.place(outbound, plan.request, Waited.NOWHERE, now_s, now_s)
    if isinstance(placed, Ticket):
        plan.ticket = placed
        outbound.resumed, flow.resumes = plan, True
        decided(outbound, placed, now_s, started_s)
        return True
    if isinstance(placed, Held):  # it does not wait: it has a worker
        services.placements.hold(outbound, waiting, placed)
        services.placements.leave_queues(outbound, waiting)
    outbound.within = within
    return False


def resume(services: GatewayServices, outbound: OutboundRequest, _: object) -> Placement:
    """Ask for the worker that goes on with the answer, unless it has its place there already."""
    earlier, resumed = outbound.plan, outbound.resumed
    assert resumed is not None
    if earlier is not None:
        earlier.end(services.time())
    outbound.plan, outbound.resumed, outbound.error = resumed, None, None
    outbound.request = resumed.request
    outbound.within = OtherEndpoints(outbound.within, resumed.lost)
    outbound.flow.begin_again()
    outbound.relay.suspend()
    return place(services, outbound) if resumed.ticket is None else resumed.ticket

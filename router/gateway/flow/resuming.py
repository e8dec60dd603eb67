"""The leg after a death: an answer in progress goes on at another worker, if a feature can continue it."""

from __future__ import annotations

from collections.abc import Container

from router.gateway.flow.attempt.attempt import Attempt
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.flow.placement_steps import place
from router.gateway.flow.plan import ResumingPlan
from router.gateway.flow.services import Follows, GatewayServices
from router.gateway.flow.transitions import Event, RequestState
from router.placement.request import FailurePoint
from router.requests.placing import Placement


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
    relay, preamble = outbound.relay, outbound.relay.preamble()
    for rewrite in outbound.rewrites:
        resumed = rewrite.resumption(attempt, trigger, relay.last_read_s, preamble)
        if resumed is not None:
            assert isinstance(resumed, ResumingPlan)
            outbound.resumed, outbound.flow.resumes = resumed, True
            return


def hand_over(services: GatewayServices, outbound: OutboundRequest) -> Follows:
    """Let an answer leave a worker that drains, if another one is ready and a feature can continue it."""
    flow, attempt = outbound.flow, outbound.flow.attempt
    if flow.state is not RequestState.STREAMING or not outbound.rewrites or not outbound.client.writable:
        return None
    if not services.edges.replaceable(outbound, attempt.ticket, FailurePoint.CONNECT, services.time()):
        return None
    prepare(outbound, attempt, "drain")
    return (Event.HANDED_ON, None) if flow.resumes else None


def resume(services: GatewayServices, outbound: OutboundRequest, _: object) -> Placement:
    """Ask for the worker that goes on with the answer."""
    earlier, resumed = outbound.plan, outbound.resumed
    assert resumed is not None
    if earlier is not None:
        earlier.end(services.time())
    outbound.plan, outbound.resumed, outbound.error = resumed, None, None
    outbound.request = resumed.request
    outbound.within = OtherEndpoints(outbound.within, resumed.lost)
    outbound.flow.begin_again()
    outbound.relay.suspend()
    return place(services, outbound)

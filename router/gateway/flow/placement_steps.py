"""The steps of the flow that ask for a worker, and send to it. Each returns what the driver has to begin with it."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Final

from router.errors import RequestError
from router.gateway.flow.attempt.attempt import Attempt, AttemptInbox
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.flow.plan import After, PlannedLeg, RequestPlan
from router.gateway.flow.services import GatewayServices
from router.gateway.flow.transitions import Event, RequestState
from router.placement.tickets import Held, Queued, Ticket
from router.requests.placing import Placement, SharedPlacement, Waited

_ALONE: Final = PlannedLeg("", collects=False, limit_s=math.inf)
BESIDE: Final = PlannedLeg("prefill", collects=True, limit_s=math.inf)
_WAITED: Final = {RequestState.QUEUED: Waited.QUEUE, RequestState.HELD: Waited.HOLD}


def place(services: GatewayServices, outbound: OutboundRequest, _: object = None) -> Placement:
    request, flow, now_s = outbound.request, outbound.flow, services.time()
    assert request is not None
    if outbound.plan is not None and (held := outbound.plan.turn()) is not None:
        return held
    started_s = perf_counter()
    waited = _WAITED.get(flow.state, Waited.NOWHERE)
    placed = services.placements.place(outbound, request, waited, flow.since_s, now_s)
    decided(outbound, placed.noted if isinstance(placed, SharedPlacement) else placed, now_s, started_s)
    return placed


def retry(services: GatewayServices, outbound: OutboundRequest, attempt: Attempt) -> Placement:
    plan, now_s = outbound.plan, services.time()
    if plan is not None:
        follows = plan.failed(attempt, lambda failed: services.placements.within(outbound, failed), now_s)
        if isinstance(follows, Ticket):
            return follows
        if follows is After.ALONE:
            outbound.flow.skip_to_last_leg()
            return place(services, outbound)
    started_s = perf_counter()
    again = services.edges.retry(outbound, attempt, now_s)
    decided(outbound, again, now_s, started_s)
    return again


def next_leg(services: GatewayServices, outbound: OutboundRequest, attempt: Attempt) -> Placement:
    attempt.release(reusable=True)
    ticket = None if outbound.plan is None else outbound.plan.next_leg(services.time())
    return place(services, outbound) if ticket is None else ticket


def place_expired(services: GatewayServices, outbound: OutboundRequest, now_s: float) -> Ticket | RequestError:
    """Place a request that has been queued for too long on a fallback's worker, or return the error for it."""
    placed = services.placements.queue_expired(outbound, now_s)
    found = isinstance(placed, Ticket)
    services.metrics.queue.observe(now_s - outbound.flow.since_s, ("true" if found else "false",))
    if found:
        decided(outbound, placed, now_s, perf_counter())
    return placed


def decided(
    outbound: OutboundRequest, placed: Ticket | Queued | Held | RequestError, now_s: float, started_s: float
) -> None:
    for layer in outbound.layers:
        layer.decided(placed, now_s, perf_counter() - started_s)


def event_of(
    services: GatewayServices, outbound: OutboundRequest, placed: Placement, inbox: AttemptInbox
) -> tuple[Event, Attempt | None]:
    """Return the event of the flow for the answer to a call for a worker."""
    flow = outbound.flow
    if isinstance(placed, Ticket):
        return Event.PLACED, _attempt(services, outbound, placed, inbox)
    if isinstance(placed, RequestError):
        outbound.error = placed.with_traceback(None)  # its frames hold the error and this request, a cycle
        return Event.REFUSED, None
    if isinstance(placed, SharedPlacement):
        assert isinstance(placed, RequestPlan)
        outbound.plan, flow.legs = placed, placed.sequence
        return Event.PLACED, _attempt(services, outbound, placed.first, inbox)
    waits = isinstance(placed, Queued)
    if flow.state is not (RequestState.QUEUED if waits else RequestState.HELD):
        flow.since_s = services.time()
    return Event.NO_WORKER if waits else Event.HOLD, None


def _attempt(services: GatewayServices, outbound: OutboundRequest, ticket: Ticket, inbox: AttemptInbox) -> Attempt:
    outbound.ticket, plan = ticket, outbound.plan
    leg = _ALONE if plan is None else plan.leg(ticket, services.time())
    return attempt_in(leg, services, outbound, ticket, inbox)


def attempt_in(
    leg: PlannedLeg, services: GatewayServices, outbound: OutboundRequest, ticket: Ticket, inbox: AttemptInbox
) -> Attempt:
    name, collects, limit_s = leg
    commented, paused = outbound.flow.commented, not collects and not outbound.client.writable
    attempt = Attempt(
        services.pools, outbound, ticket, inbox, commented=commented, paused=paused, collects=collects, limit_s=limit_s
    )
    for layer in outbound.layers:
        layer.attempted(attempt, services.time(), name)
    return attempt


def send(services: GatewayServices, outbound: OutboundRequest, attempt: Attempt) -> None:
    # A redial after a stale connection would send the transfer parameters twice.
    attempt.begin(fresh=attempt.depends)
    outbound.arm()

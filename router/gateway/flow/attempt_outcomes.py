"""What follows for a request from an outcome of its attempt, from the loss of a worker, or from a deadline."""

from __future__ import annotations

import logging
from typing import Final

from router.errors import ErrorKind, RequestError
from router.gateway.flow.attempt.attempt import Attempt
from router.gateway.flow.deadlines import Deadline
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.flow.outcomes import Failure, Outcome
from router.gateway.flow.placement_steps import place_expired
from router.gateway.flow.resuming import prepare
from router.gateway.flow.services import Follows, GatewayServices
from router.gateway.flow.transitions import Event, RequestState
from router.gateway.http.upstream.answer_end import REASONS, AnswerFault
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.request import FailurePoint

log = logging.getLogger("warmroute.gateway")

_ABORT: Final = REASONS[AnswerFault.ABORTED]
_LOST: Final = "the worker was ejected or removed while the request waited for it"
_NO_STREAM: Final = "it answered at once, where the rest of a stream was asked for"
_GONE: Final = "the worker is gone: it refuses connections, and its answers have stopped"


def after(services: GatewayServices, outbound: OutboundRequest, outcome: Outcome, attempt: Attempt) -> Follows:
    """Return what follows from the outcome of an attempt."""
    if outcome is Outcome.OPENED:
        return Event.OPENED, attempt
    if outcome is Outcome.ANSWERED:
        if outbound.begun and attempt.status < 400 and outbound.flow.state is RequestState.WAITING:
            attempt.release(reusable=True)
            attempt.failure = Failure(FailurePoint.ANSWERED, _NO_STREAM)
            return Event.FAILED, attempt
        return Event.DECLINED if attempt.status >= 400 else Event.ANSWERED, attempt
    if outcome is Outcome.FAILED:
        return _failed(outbound, attempt)
    if outcome is Outcome.SWITCHED:
        return Event.SWITCHED, attempt
    if outcome is Outcome.MOVED:
        outbound.arm()
    elif outcome is Outcome.SUSPECTED or outcome is Outcome.BROKEN:
        services.edges.suspect(outbound, attempt, lost=outcome is Outcome.BROKEN)
    else:
        return _declined(services, outbound, outcome, attempt)
    return None


def _failed(outbound: OutboundRequest, attempt: Attempt) -> Follows:
    failure, state = attempt.failure, outbound.flow.state
    assert failure is not None
    if state is RequestState.STREAMING:
        kind = ErrorKind.BAD_UPSTREAM if failure.broke_http else ErrorKind.WORKER_DIED_IN_STREAM
        message = f"the worker's answer broke off: {failure.reason}"
        return _stream_failed(outbound, Event.FAILED, kind, message, "abort" if failure.reason == _ABORT else "cut")
    if state is RequestState.TUNNEL:
        log.debug("tunnel ended", extra={"worker": attempt.ticket.candidate.id, "reason": failure.reason})
    return Event.FAILED, attempt


def _declined(services: GatewayServices, outbound: OutboundRequest, outcome: Outcome, attempt: Attempt) -> Follows:
    """Retry or pass on a complete answer that is a 404 about the model, or a server error."""
    flow = outbound.flow
    if (
        flow.in_earlier_leg
        or attempt.depends
        or services.edges.should_discard(outbound, attempt, services.time(), commented=flow.commented)
    ):
        attempt.release(reusable=True)
        return Event.FAILED, attempt
    return Event.DECLINED if outcome is Outcome.NOT_FOUND else Event.ERRED, attempt


def _stream_failed(
    outbound: OutboundRequest, event: Event, kind: ErrorKind, message: str, trigger: str = ""
) -> Follows:
    """End the stream in progress, because its worker failed it, or let it go on elsewhere after what a `trigger` is."""
    attempt = outbound.flow.attempt
    if trigger and outbound.rewrites:
        prepare(outbound, attempt, trigger)
    attempt.failure = Failure(FailurePoint.STREAM, message)
    outbound.error = RequestError(kind, message)
    return event, attempt


# a lost worker


def endpoint_lost(services: GatewayServices, outbound: OutboundRequest, endpoint: FleetEndpoint) -> None:
    """Give up an attempt at `endpoint`, which was ejected or removed, if another worker is ready."""
    flow, attempt = outbound.flow, outbound.flow.attempt
    if attempt is not None and attempt.unopened and attempt.ticket.candidate.endpoint is endpoint:
        point = FailurePoint.SENT if attempt.sent else FailurePoint.CONNECT
        if flow.in_earlier_leg or services.edges.replaceable(outbound, attempt.ticket, point, services.time()):
            attempt.give_up(_LOST)
    _give_up_beside(outbound, endpoint, _LOST)


def worker_gone(outbound: OutboundRequest, endpoint: FleetEndpoint) -> Follows:
    """Give up what runs at `endpoint`: no answer will come from it.

    An answer that has begun ends with an error, unless its client does not read: its rest may be here already.
    """
    attempt = outbound.flow.attempt
    if attempt is not None and attempt.ticket.candidate.endpoint is endpoint:
        if outbound.flow.state is RequestState.STREAMING:
            kind = ErrorKind.WORKER_DIED_IN_STREAM
            return _stream_failed(outbound, Event.FAILED, kind, _GONE, "silence") if outbound.client.writable else None
        if attempt.unopened and attempt.sent:
            attempt.give_up(_GONE)
    _give_up_beside(outbound, endpoint, _GONE)
    return None


def _give_up_beside(outbound: OutboundRequest, endpoint: FleetEndpoint, reason: str) -> None:
    plan = outbound.plan
    if plan is not None and plan.beside is endpoint:
        plan.give_up_beside(reason)


# deadlines


def expire(services: GatewayServices, outbound: OutboundRequest, now_s: float) -> Follows:
    """Return what follows from the deadline that has passed, if any."""
    flow, client = outbound.flow, outbound.client
    if outbound.overdrawn:
        services.log.error(outbound, ErrorKind.TOKENS_PER_MINUTE.spec.code, "stream")
        return Event.STALLED, flow.attempt
    due = flow.due(now_s, outbound.last_read_s)
    if due is Deadline.STATE:
        return _state_expired(services, outbound, now_s)
    if flow.state is RequestState.STREAMING and _trickles(services, outbound, now_s):
        return _stalled(outbound, "the worker's stream stalled: it only trickles")
    if due is Deadline.TOTAL:
        outbound.error = RequestError(ErrorKind.TOTAL_TIMEOUT, "the request took too long")
        return Event.STOPPED, None
    if due is Deadline.COMMENT:
        flow.comment_sent(now_s)
        if client.writable:
            return Event.COMMENT_DUE, None
    return None


def _state_expired(services: GatewayServices, outbound: OutboundRequest, now_s: float) -> Follows:
    state, attempt = outbound.flow.state, outbound.flow.attempt
    if state is RequestState.QUEUED:
        return place_expired(services, outbound, now_s)
    if state is RequestState.WAITING:
        attempt.give_up("no first event in time" if attempt.sent else "connecting took too long", late=True)
        return None
    if state is RequestState.TUNNEL:
        return Event.STALLED, attempt
    if not outbound.client.writable:
        return Event.CLIENT_STALLED, None  # the client has not read for `stream_idle_s`
    if _goes_on(services, outbound, attempt, now_s):
        return None
    return _stalled(outbound, "the worker's stream stalled")


def _stalled(outbound: OutboundRequest, message: str) -> Follows:
    return _stream_failed(outbound, Event.STALLED, ErrorKind.STREAM_IDLE_TIMEOUT, message)


def _trickles(services: GatewayServices, outbound: OutboundRequest, now_s: float) -> bool:
    idle_s = services.timeouts.stream_idle_s
    return outbound.relay.trickles(now_s, outbound.flow.since_s, idle_s) and outbound.client.writable


def _goes_on(services: GatewayServices, outbound: OutboundRequest, attempt: Attempt, now_s: float) -> bool:
    """Return whether the answer in progress, a quiet stream, may go on, because its worker works."""
    if attempt.response is None or not attempt.response.events:
        return False
    return outbound.flow.goes_on(now_s, outbound.last_read_s, services.edges.worked_s(attempt, now_s))

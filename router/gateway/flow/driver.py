"""Drive one forwarded request: turn calls from the client, the queues and its attempt into events of the flow.

The flow decides (`transitions`), and the steps carry its effects out. A part returns what follows; none calls the
driver back. Tokens do not pass through it: after the answer has begun, the worker's connection writes directly to the
client (`relay.Relay.splice_events`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from policies.view import WorkerId
from router.errors import ErrorKind, RequestError
from router.gateway.flow import answer_steps, attempt_outcomes, resuming
from router.gateway.flow.answer.relay import Relay
from router.gateway.flow.attempt.attempt import Attempt, AttemptInbox
from router.gateway.flow.flow import Flow
from router.gateway.flow.giving_way import give_way
from router.gateway.flow.identification import Unidentified, identify, identify_now
from router.gateway.flow.outbound import OutboundRequest, RequestClient
from router.gateway.flow.outcomes import Outcome
from router.gateway.flow.placement_steps import BESIDE, attempt_in, event_of
from router.gateway.flow.plan import RequestPlan
from router.gateway.flow.services import Follows, GatewayServices
from router.gateway.flow.steps import STEPS
from router.gateway.flow.transitions import BEGUN, Effect, Event, RequestState
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.tickets import Held, Ticket
from router.requests.request_head import RequestHead
from router.requests.routes import Route
from router.security.callers import TenantUsage

log = logging.getLogger("warmroute.gateway")

SHUT_DOWN = "the gateway is shutting down"
_IDENTIFIED: Final = (Event.IDENTIFIED, None)
_OFFERED: Final = (Event.OFFERED, None)
_HANDED_ON: Final = (Event.HANDED_ON, None)


class RequestDriver:
    """Drives one request, which is one of the `services.running` until it ends."""

    __slots__ = ("_ended", "_identifying", "_outbound", "_services")

    def __init__(
        self, services: GatewayServices, client: RequestClient, head: RequestHead, body: bytes, route: Route
    ) -> None:
        self._services = services
        request_id, arrived_s = services.request_ids.of(head), services.time()
        flow = Flow(services.timeouts, arrived_s)
        relay = Relay(client.output, services.time, head, services.lines.cors_enabled, self._progressed)
        outbound = OutboundRequest(head, body, route, request_id, client, arrived_s, flow, relay)
        outbound.layers = services.features.layers(outbound)
        self._outbound = outbound
        self._identifying: asyncio.Task[None] | None = None
        self._ended = False

    def take(self, follows: Follows) -> None:
        """Take an event or the answer to a call for a worker, and then what follows from it."""
        services, outbound = self._services, self._outbound
        attempt: Attempt | None = None
        try:
            while follows is not None:
                taken = follows
                event, attempt = taken if isinstance(taken, tuple) else event_of(services, outbound, taken, self)
                follows = None
                for effect in outbound.flow.handle(event, attempt):
                    step = STEPS[effect]
                    if step is None:
                        self._carry_out(effect, taken)
                    else:
                        follows = step(services, outbound, attempt)
                if isinstance(taken, RequestPlan):
                    taken.begin_beside(self)
        except Exception:
            if self._ended or outbound.flow.state is not RequestState.OVER:
                raise
            self._end_crashed(attempt)

    # the client and the gateway

    def start(self) -> None:
        services, outbound = self._services, self._outbound
        services.running.add(self)
        if len(services.running) > services.max_requests:
            self.take(RequestError(ErrorKind.CONCURRENCY_LIMIT, "too many requests in progress; try again later"))
            return
        left = identify_now(services, outbound)
        if isinstance(left, Unidentified):
            self._identifying = services.loop.create_task(self._identify(left))
            outbound.arm()
        else:
            self.take(_IDENTIFIED if left is None else left)

    async def _identify(self, left: Unidentified) -> None:
        try:
            refusal = await identify(self._services, self._outbound, left)
            self._identifying = None
            self.take(_IDENTIFIED if refusal is None else refusal)
        except Exception:
            self._identifying = None
            self.crashed()

    def client_gone(self) -> None:
        outbound, state = self._outbound, self._outbound.flow.state
        if state is RequestState.OVER:
            return
        outbound.left_in = state
        outbound.relay.flush()
        begun = outbound.begun or state in BEGUN
        self._services.metrics.client_aborts.add(1.0, ("stream" if begun else "before_first",))
        self.take((Event.CLIENT_GONE, None))

    def client_writable(self, writable: bool) -> None:
        """Pause the attempt while the client does not read, or resume it."""
        outbound = self._outbound
        if not outbound.beside and outbound.flow.attempt is not None:  # else it reads no answer yet, or goes on
            outbound.flow.attempt.pause(not writable)
        outbound.relay.paced()

    def expired(self, now_s: float) -> None:
        """Act on the deadline that has passed, if any, and set the next one."""
        self.take(attempt_outcomes.expire(self._services, self._outbound, now_s))
        if not self._ended:
            self._outbound.arm()

    def shut_down(self) -> None:
        self._stop(ErrorKind.SHUTTING_DOWN, SHUT_DOWN)

    def crashed(self) -> None:
        """Log a defect and end the request; call from an `except` block."""
        _log_defect(self._outbound)
        self._stop(ErrorKind.INTERNAL, "internal error")

    def _stop(self, kind: ErrorKind, message: str) -> None:
        self._outbound.error = RequestError(kind, message)
        self.take((Event.STOPPED, None))

    def note_read(self) -> None:
        """Note in the worker's evidence when the last byte of the answer in progress arrived."""
        outbound, flow = self._outbound, self._outbound.flow
        if flow.state is RequestState.STREAMING:  # a tunnel's last byte may be the client's
            flow.attempt.ticket.candidate.endpoint.evidence.progressed(outbound.last_read_s)

    # the queues, the quarantine and the watches of lost workers

    @property
    def account(self) -> TenantUsage | None:
        return self._outbound.caller.account

    @property
    def served_as(self) -> tuple[str, str]:
        return self._services.log.served_as(self._outbound)

    @property
    def body_key(self) -> int:
        return self._services.placements.body_key(self._outbound)

    @property
    def tickets(self) -> list[Ticket]:
        attempt = self._outbound.flow.attempt
        return [] if attempt is None else [attempt.ticket]

    @property
    def endpoints(self) -> tuple[FleetEndpoint, ...]:
        return (*(ticket.candidate.endpoint for ticket in self.tickets), *self._outbound.beside)

    @property
    def unanswered(self) -> tuple[FleetEndpoint, ...]:
        attempt = self._outbound.flow.attempt
        waits = attempt is not None and attempt.unopened and attempt.sent
        return (attempt.ticket.candidate.endpoint,) if waits else ()

    @property
    def awaited(self) -> tuple[FleetEndpoint, ...]:
        attempt, beside = self._outbound.flow.attempt, self._outbound.beside
        return beside if attempt is None or not attempt.unopened else (attempt.ticket.candidate.endpoint, *beside)

    def sent_to(self, worker: WorkerId | None) -> bool:
        return any(ticket.candidate.id == worker for ticket in self.tickets)

    def offer(self) -> None:
        try:
            self.take(_OFFERED)
        except Exception:
            self.crashed()

    @property
    def kept_bytes(self) -> int:
        return self._outbound.kept_bytes

    def hand_over(self) -> bool:
        try:
            plan = resuming.movable(self._outbound, resuming.DRAIN)
            if plan is not None and not resuming.find_place(self._services, self._outbound, plan, self):
                return False
            self.take(None if plan is None else _HANDED_ON)
        except Exception:
            self.crashed()
        return True

    def give_way(self, begun: bool, left: Callable[[bool], None]) -> bool:
        try:
            follows = give_way(self._services, self._outbound, begun, left)
            self.take(follows)
        except Exception:
            self.crashed()
            return True
        return follows is not None

    def endpoint_lost(self, endpoint: FleetEndpoint) -> None:
        try:
            attempt_outcomes.endpoint_lost(self._services, self._outbound, endpoint)
        except Exception:
            self.crashed()

    def worker_gone(self, endpoint: FleetEndpoint) -> None:
        try:
            self.take(attempt_outcomes.worker_gone(self._outbound, endpoint))
        except Exception:
            self.crashed()

    # attempts

    def attempt_beside(self, ticket: Ticket, inbox: AttemptInbox) -> Attempt:
        return attempt_in(BESIDE, self._services, self._outbound, ticket, inbox)

    def post(self, outcome: Outcome, attempt: Attempt) -> None:
        """Take what an attempt of this request tells it."""
        plan = self._outbound.plan
        if plan is not None and plan.holds_back(outcome, attempt):
            return
        if outcome is Outcome.CRASHED:
            self.crashed()
        else:
            self.take(attempt_outcomes.after(self._services, self._outbound, outcome, attempt))

    def suspect(self, attempt: Attempt, *, lost: bool) -> None:
        self._services.edges.suspect(self._outbound, attempt, lost=lost)

    def beside_ended(self, problem: str | None) -> None:
        outbound, plan, attempt = self._outbound, self._outbound.plan, self._outbound.flow.attempt
        assert plan is not None and isinstance(attempt, Attempt)
        try:
            outcomes = plan.beside_ended(attempt, problem, self._services.time())
            if problem is None:
                outbound.arm()
                attempt.pause(not outbound.client.writable)
            for outcome in outcomes:
                self.post(outcome, attempt)
        except Exception:
            self.crashed()

    def _progressed(self, gaps_s: Sequence[float], events: int) -> None:
        outbound, services = self._outbound, self._services
        services.log.gaps(outbound, gaps_s)
        if events and outbound.rewrites:
            for rewrite in outbound.rewrites:
                rewrite.begun()
            outbound.client.body_done(outbound.kept_bytes)
        ticket = outbound.ticket
        if ticket is not None and not ticket.ended:
            services.placements.tickets.progress(ticket, events, gaps_s, outbound.relay.last_read_s)

    # the effects that need the driver itself

    def _carry_out(self, effect: Effect, taken: object) -> None:
        placements, outbound = self._services.placements, self._outbound
        if effect is Effect.LEAVE:
            placements.leave_queues(outbound, self)
            if outbound.plan is not None:
                outbound.plan.leaves(self)
            identifying, self._identifying = self._identifying, None
            if identifying is not None:
                identifying.cancel()
        elif effect is Effect.END:
            self._end()
        elif isinstance(taken, Held):
            if outbound.plan is None or not outbound.plan.waits(self, taken):
                placements.hold(outbound, self, taken)
            outbound.arm()
        else:
            placements.queue(outbound, self)
            outbound.flow.queue_s = placements.queue_s(outbound)
            outbound.arm()

    def _end(self) -> None:
        self._ended = True
        self._services.running.discard(self)
        answer_steps.end(self._services, self._outbound)

    def _end_crashed(self, attempt: Attempt | None) -> None:
        """End the request in spite of a defect in its last effects; call from an `except` block."""
        services, outbound = self._services, self._outbound
        _log_defect(outbound)
        if attempt is not None:
            services.edges.cancel(attempt, services.time())
        outbound.error = RequestError(ErrorKind.INTERNAL, "internal error")
        answer_steps.break_off(services, outbound, None)
        self._end()


def _log_defect(outbound: OutboundRequest) -> None:
    log.exception("request failed", extra={"request_id": outbound.id.decode("latin-1")})

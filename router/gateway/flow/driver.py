"""Drive one forwarded request: turn calls from the client, the queues and its attempt into events of the flow.

The flow decides (`transitions`); this module does the input and output, and carries out the flow's effects. Tokens do
not pass through it: after the answer has begun, the worker's connection writes directly to the client
(`respond.Relay.splice_events`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

from policies.view import WorkerId
from router.errors import ErrorKind, RequestError
from router.gateway.flow.attempt.attempt import Attempt, AttemptInbox
from router.gateway.flow.deadlines import Deadline
from router.gateway.flow.flow import Flow
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.flow.outcomes import Outcome
from router.gateway.flow.plan import After, RequestPlan
from router.gateway.flow.responder import RESPONSE_STEPS, Responder
from router.gateway.flow.services import GatewayServices, RequestClient
from router.gateway.flow.transitions import BEGUN, Effect, Event, RequestState
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.request import FailurePoint
from router.placement.tickets import Held, Queued, Ticket
from router.requests.placing import SharedPlacement, Waited
from router.security.callers import TenantUsage
from router.tokenization.body.parsed_body import ParsedBody
from router.tokenization.prompt_identifier import PendingPrompt

log = logging.getLogger("warmroute.gateway")

SHUT_DOWN = "the gateway is shutting down"
_LOST: Final = "the worker was ejected or removed while the request waited for it"
_GONE: Final = "the worker is gone: it refuses connections, and its answers have stopped"
# Module constants, because looking up a member of an enum is slow.
_IDENTIFIED: Final = Event.IDENTIFIED
_PLACED: Final = Event.PLACED
_OPENED: Final = Event.OPENED
_WAITED: Final = {RequestState.QUEUED: Waited.QUEUE, RequestState.HELD: Waited.HOLD}
_NOWHERE: Final = Waited.NOWHERE
_ANSWERED: Final = Event.ANSWERED
_HAS_OPENED: Final = Outcome.OPENED
_HAS_ANSWERED: Final = Outcome.ANSWERED


class RequestDriver:
    """Drives one request, which is one of the `services.running` until it ends."""

    __slots__ = (
        "_client", "_ended", "_flow", "_held", "_identifying", "_outbound", "_responder", "_services",
    )  # fmt: skip

    def __init__(
        self,
        services: GatewayServices,
        client: RequestClient,
        outbound: OutboundRequest,
    ) -> None:
        self._services = services
        self._client = client
        self._flow = Flow(services.timeouts, outbound.arrived_s)
        self._outbound = outbound
        self._responder = Responder(services, client, outbound)
        outbound.layers = services.features.layers(outbound)
        self._identifying: asyncio.Task[None] | None = None
        self._held: Held | None = None
        """The policy's hold, between its decision and the hold queue: for how long and for which worker."""
        self._ended = False

    # for the queues, the quarantine and the gateway

    @property
    def account(self) -> TenantUsage | None:
        return self._outbound.caller.account

    @property
    def served_as(self) -> tuple[str, str]:
        return self._services.log.served_as(self._outbound)

    @property
    def tickets(self) -> list[Ticket]:
        return [] if self._flow.attempt is None else [self._flow.attempt.ticket]

    @property
    def body_key(self) -> int:
        return self._services.placements.body_key(self._outbound)

    @property
    def unanswered(self) -> tuple[FleetEndpoint, ...]:
        attempt = self._flow.attempt
        if attempt is None or not attempt.unopened or not attempt.sent:
            return ()
        return (attempt.ticket.candidate.endpoint,)

    @property
    def awaited(self) -> tuple[FleetEndpoint, ...]:
        attempt = self._flow.attempt
        awaited = () if attempt is None or not attempt.unopened else (attempt.ticket.candidate.endpoint,)
        return (*awaited, *self._beside)

    @property
    def _beside(self) -> tuple[FleetEndpoint, ...]:
        """The endpoint of a leg that runs beside the client's, if any."""
        beside = None if self._outbound.plan is None else self._outbound.plan.beside
        return () if beside is None else (beside,)

    def _give_up_beside(self, endpoint: FleetEndpoint, reason: str) -> None:
        plan = self._outbound.plan
        if plan is not None and plan.beside is endpoint:
            plan.give_up_beside(reason)

    def note_read(self) -> None:
        """Note in the worker's evidence when the last byte of the answer in progress arrived."""
        attempt = self._responder.answering
        if attempt is not None and not attempt.switched:  # a tunnel's last byte may be the client's
            attempt.ticket.candidate.endpoint.evidence.progressed(self._responder.last_read_s)

    def sent_to(self, worker: WorkerId | None) -> bool:
        return any(ticket.candidate.id == worker for ticket in self.tickets)

    def offer(self) -> None:
        try:
            self._on(Event.OFFERED)
        except Exception:
            self.crashed()

    def endpoint_lost(self, endpoint: FleetEndpoint) -> None:
        """Give up an attempt at `endpoint`, which was ejected or removed, if another worker is ready."""
        attempt, edges, now_s = self._flow.attempt, self._services.edges, self._services.time()
        try:
            if attempt is not None and attempt.unopened and attempt.ticket.candidate.endpoint is endpoint:
                ticket, point = attempt.ticket, FailurePoint.SENT if attempt.sent else FailurePoint.CONNECT
                if self._flow.in_earlier_leg or edges.replaceable(self._outbound, ticket, point, now_s):
                    attempt.give_up(_LOST)
            self._give_up_beside(endpoint, _LOST)
        except Exception:
            self.crashed()

    @property
    def endpoints(self) -> tuple[FleetEndpoint, ...]:
        return (*(ticket.candidate.endpoint for ticket in self.tickets), *self._beside)

    def worker_gone(self, endpoint: FleetEndpoint) -> None:
        """Give up what runs at `endpoint`: no answer will come from it.

        An answer that has begun ends with an error, unless its client does not read: its rest may be here already.
        """
        try:
            answering = self._responder.answering
            if answering is not None and answering.ticket.candidate.endpoint is endpoint:
                if self._flow.state is RequestState.STREAMING and self._client.writable:
                    self._stream_failed(Event.FAILED, ErrorKind.WORKER_DIED_IN_STREAM, _GONE)
                return
            if endpoint in self.unanswered:
                self._flow.attempt.give_up(_GONE)
            self._give_up_beside(endpoint, _GONE)
        except Exception:
            self.crashed()

    # events

    def _on(self, event: Event, attempt: Attempt | None = None) -> None:
        try:
            for effect in self._flow.handle(event, attempt):
                step = _STEPS[effect]
                if step is not None:
                    step(self, attempt)
                else:
                    RESPONSE_STEPS[effect](self._responder, attempt)
        except Exception:
            if self._ended or self._flow.state is not RequestState.OVER:
                raise
            self._end_crashed(attempt)

    def refuse(self, error: RequestError) -> None:
        self._identifying = None
        self._responder.error = error.with_traceback(None)  # its frames hold the error and this request, a cycle
        self._on(Event.REFUSED)

    def _stop(self, kind: ErrorKind, message: str) -> None:
        self._responder.error = RequestError(kind, message)
        self._on(Event.STOPPED)

    def shut_down(self) -> None:
        self._stop(ErrorKind.SHUTTING_DOWN, SHUT_DOWN)

    def crashed(self) -> None:
        """Log a defect and end the request; call from an `except` block."""
        log.exception("request failed", extra={"request_id": self._outbound.id.decode("latin-1")})
        self._stop(ErrorKind.INTERNAL, "internal error")

    def client_gone(self) -> None:
        state = self._flow.state
        if state is RequestState.OVER:
            return
        self._responder.left_in = state
        self._responder.relay.flush()
        self._services.metrics.client_aborts.add(1.0, ("stream" if state in BEGUN else "before_first",))
        self._on(Event.CLIENT_GONE)

    def client_writable(self, writable: bool) -> None:
        """Pause the attempt while the client does not read, or resume it."""
        if not self._beside and self._flow.attempt is not None:  # else it reads no answer yet, or goes on by itself
            self._flow.attempt.pause(not writable)
        self._responder.client_paced()

    # placing

    def start(self) -> None:
        services, outbound = self._services, self._outbound
        self._services.running.add(self)
        if len(self._services.running) > services.max_requests:
            self.refuse(RequestError(ErrorKind.CONCURRENCY_LIMIT, "too many requests in progress; try again later"))
            return
        for layer in outbound.layers:
            if (refusal := layer.started(services.time())) is not None:
                self.refuse(refusal)
                return
        pending: PendingPrompt | None = None
        try:
            parsed = services.identifier.read_now(outbound)
            if parsed is not None:
                pending = self._identify(parsed)
        except RequestError as error:
            self.refuse(error)
            return
        if parsed is not None and pending is None:
            self._identified()
            return
        self._identifying = services.loop.create_task(self._read_and_identify(parsed, pending))
        self._arm()

    def _identify(self, parsed: ParsedBody) -> PendingPrompt | None:
        services, outbound = self._services, self._outbound
        if outbound.route.by_prefix:
            services.features.read(outbound, parsed)
        if parsed.stream:
            self._flow.comments_from(outbound.arrived_s)
        return services.identifier.identify_now(outbound, parsed)

    async def _read_and_identify(self, parsed: ParsedBody | None, pending: PendingPrompt | None) -> None:
        """Do the part of the identification that waits, then go on."""
        identifier, outbound = self._services.identifier, self._outbound
        try:
            if parsed is None:
                parsed = await identifier.read(outbound)
                pending = self._identify(parsed)
                if pending is not None:
                    self._arm()
            if pending is not None:
                await identifier.identify(outbound, parsed, pending)
            self._identifying = None
            self._identified()
        except RequestError as error:
            self.refuse(error)
        except Exception:
            self._identifying = None
            self.crashed()

    def _identified(self) -> None:
        """Place the request, whose identity is now known."""
        for layer in self._outbound.layers:
            if (refusal := layer.identified(self._services.time())) is not None:
                self.refuse(refusal)
                return
        self._on(_IDENTIFIED)

    def _place(self, _: object = None) -> None:
        request = self._outbound.request
        assert request is not None
        services, state, outbound = self._services, self._flow.state, self._outbound
        now_s = services.time()
        started_s = perf_counter() if outbound.layers else 0.0
        placed = services.placements.place(outbound, request, _WAITED.get(state, _NOWHERE), self._flow.since_s, now_s)
        for layer in outbound.layers:
            layer.decided(
                placed.noted if isinstance(placed, SharedPlacement) else placed, now_s, perf_counter() - started_s
            )
        if isinstance(placed, Ticket):
            self._begin(placed)
        elif isinstance(placed, SharedPlacement):
            assert isinstance(placed, RequestPlan)
            outbound.plan = placed
            self._flow.legs = placed.sequence
            self._begin(placed.first)
            placed.begin_beside(self)
        elif isinstance(placed, RequestError):
            self.refuse(placed)
        elif isinstance(placed, Queued):
            if state is not RequestState.QUEUED:
                self._flow.since_s = now_s
            self._on(Event.NO_WORKER)
        else:
            self._held = placed
            if state is not RequestState.HELD:
                self._flow.since_s = now_s
            self._on(Event.HOLD)

    def _begin(self, ticket: Ticket) -> None:
        self._outbound.ticket = ticket
        commented, paused, plan = self._flow.commented, not self._client.writable, self._outbound.plan
        pools, outbound, name = self._services.pools, self._outbound, ""
        if plan is None:
            attempt = Attempt(pools, outbound, ticket, self, commented=commented, paused=paused)
        else:
            name, collects, limit_s = plan.leg(ticket, self._services.time())
            attempt = Attempt(
                pools, outbound, ticket, self,
                commented=commented, paused=paused and not collects, collects=collects, limit_s=limit_s,
            )  # fmt: skip
        for layer in outbound.layers:
            layer.attempted(attempt, self._services.time(), name)
        self._on(_PLACED, attempt)

    def attempt_beside(self, ticket: Ticket, inbox: AttemptInbox) -> Attempt:
        services, outbound = self._services, self._outbound
        attempt = Attempt(services.pools, outbound, ticket, inbox, commented=False, paused=False, collects=True)
        for layer in outbound.layers:
            layer.attempted(attempt, services.time(), "prefill")
        return attempt

    def _queue(self, _: object) -> None:
        placements = self._services.placements
        placements.queue(self._outbound, self)
        self._flow.queue_s = placements.queue_s(self._outbound)
        self._arm()

    def _hold(self, _: object) -> None:
        held, self._held = self._held, None
        assert held is not None
        self._services.placements.hold_queue.enter(self, held)
        self._arm()

    def _leave(self, _: object) -> None:
        self._services.placements.leave_queues(self._outbound, self)
        identifying, self._identifying = self._identifying, None
        if identifying is not None:
            identifying.cancel()

    # attempts

    def post(self, outcome: Outcome, attempt: Attempt) -> None:
        """Take what an attempt of this request tells it."""
        plan = self._outbound.plan
        if plan is not None and plan.holds_back(outcome, attempt):
            return
        if outcome is _HAS_OPENED:
            self._on(_OPENED, attempt)
        elif outcome is _HAS_ANSWERED:
            self._on(Event.DECLINED if attempt.status >= 400 else _ANSWERED, attempt)
        elif outcome is Outcome.MOVED:
            self._arm()
        elif outcome is Outcome.FAILED:
            self._failed(attempt)
        elif outcome is Outcome.SUSPECTED or outcome is Outcome.BROKEN:
            self.suspect(attempt, lost=outcome is Outcome.BROKEN)
        elif outcome is Outcome.SWITCHED:
            self._on(Event.SWITCHED, attempt)
        elif outcome is Outcome.CRASHED:
            self.crashed()
        else:
            self._declined(outcome, attempt)

    def suspect(self, attempt: Attempt, *, lost: bool) -> None:
        self._services.edges.suspect(self._outbound, attempt, lost=lost)

    def beside_ended(self, problem: str | None) -> None:
        plan, attempt = self._outbound.plan, self._flow.attempt
        assert plan is not None and isinstance(attempt, Attempt)
        try:
            outcomes = plan.beside_ended(attempt, problem, self._services.time())
            if problem is None:
                self._arm()
                attempt.pause(not self._client.writable)
            for outcome in outcomes:
                self.post(outcome, attempt)
        except Exception:
            self.crashed()

    def _failed(self, attempt: Attempt) -> None:
        failure = attempt.failure
        assert failure is not None
        if self._flow.state is RequestState.STREAMING:
            kind = ErrorKind.BAD_UPSTREAM if failure.broke_http else ErrorKind.WORKER_DIED_IN_STREAM
            self._stream_failed(Event.FAILED, kind, f"the worker's answer broke off: {failure.reason}")
            return
        if self._flow.state is RequestState.TUNNEL:
            log.debug("tunnel ended", extra={"worker": attempt.ticket.candidate.id, "reason": failure.reason})
        self._on(Event.FAILED, attempt)

    def _stream_failed(self, event: Event, kind: ErrorKind, message: str) -> None:
        attempt = self._responder.worker_failed(kind, message)
        if attempt is not None:
            self._on(event, attempt)

    def _declined(self, outcome: Outcome, attempt: Attempt) -> None:
        """Retry or pass on a complete answer that is a 404 about the model, or a server error."""
        services, flow = self._services, self._flow
        if (
            flow.in_earlier_leg
            or self._depends(attempt)
            or services.edges.should_discard(self._outbound, attempt, services.time(), commented=flow.commented)
        ):
            attempt.let_go(reusable=True)
            self._on(Event.FAILED, attempt)
        else:
            self._on(Event.DECLINED if outcome is Outcome.NOT_FOUND else Event.ERRED, attempt)

    def _send(self, attempt: Attempt) -> None:
        # A redial after a stale connection would send the transfer parameters twice.
        attempt.begin(fresh=self._depends(attempt))
        self._client.deadline_s = self._flow.attempt_began(attempt)

    def _depends(self, attempt: Attempt) -> bool:
        """Return whether the attempt gets another worker's KV cache."""
        plan = self._outbound.plan
        return plan is not None and plan.depends_at(attempt.ticket)

    def _retry(self, attempt: Attempt) -> None:
        services, outbound, plan = self._services, self._outbound, self._outbound.plan
        now_s = services.time()
        if plan is not None:
            follows = plan.failed(attempt, self._within, now_s)
            if isinstance(follows, Ticket):
                self._begin(follows)
                return
            if follows is After.ALONE:
                self._flow.skip_to_last_leg()
                self._place()
                return
        started_s = perf_counter() if outbound.layers else 0.0
        again = services.edges.retry(outbound, attempt, now_s)
        for layer in outbound.layers:
            layer.decided(again, now_s, perf_counter() - started_s)
        if isinstance(again, Ticket):
            self._begin(again)
        else:
            self.refuse(again)

    def _within(self, failed: tuple[str, ...]) -> frozenset[str] | None:
        return self._services.placements.within(self._outbound, failed)

    def _cancel(self, _: object) -> None:
        self._responder.cancel(self._flow.take_dropped())

    def _next_leg(self, attempt: Attempt) -> None:
        attempt.let_go(reusable=True)
        plan = self._outbound.plan
        ticket = None if plan is None else plan.next_leg(self._services.time())
        if ticket is not None:
            self._begin(ticket)
        else:
            self._place()

    # the answer

    def _respond(self, attempt: Attempt) -> None:
        now_s, plan = self._services.time(), self._outbound.plan
        if plan is not None:
            plan.opened(attempt.ticket, now_s)
        self._responder.open(attempt, now_s)
        response = attempt.response
        self._client.deadline_s = self._flow.answer_began(now_s, response is not None and response.events)

    def _switch(self, attempt: Attempt) -> None:
        self._flow.tunnel_began()
        self._responder.switch(attempt)
        self._arm()

    def _comment(self, _: object) -> None:
        self._responder.comment()
        if self._flow.attempt is not None:
            self._flow.attempt.comment()

    def _end(self, _: object) -> None:
        self._ended = True
        self._services.running.discard(self)
        self._services.placements.ended(self._outbound)
        if self._outbound.plan is not None:
            self._outbound.plan.end(self._services.time())
        self._responder.close()

    def _end_crashed(self, attempt: Attempt | None) -> None:
        """End the request in spite of a defect in its last effects; call from an `except` block."""
        log.exception("request failed", extra={"request_id": self._outbound.id.decode("latin-1")})
        if attempt is not None:
            self._responder.cancel(attempt)
        self._responder.error = RequestError(ErrorKind.INTERNAL, "internal error")
        self._responder.break_off()
        self._end(None)

    # time

    def _arm(self) -> None:
        self._client.deadline_s = self._flow.next_s(self._responder.last_read_s)

    def expired(self, now_s: float) -> None:
        """Act on the deadline that has passed, if any, and set the next one."""
        flow = self._flow
        if self._responder.overdrawn:
            self._services.log.error(self._outbound, ErrorKind.TOKENS_PER_MINUTE.spec.code, "stream")
            self._on(Event.STALLED, self._responder.answering)
            return
        due = flow.due(now_s, self._responder.last_read_s)
        if due is Deadline.STATE:
            self._state_expired(now_s)
        elif flow.state is RequestState.STREAMING and self._responder.trickles(now_s, flow.since_s):
            self._stalled("the worker's stream stalled: it only trickles")
        elif due is Deadline.TOTAL:
            self._stop(ErrorKind.TOTAL_TIMEOUT, "the request took too long")
        elif due is Deadline.COMMENT:
            flow.comment_sent(now_s)
            if self._client.writable:
                self._on(Event.COMMENT_DUE)
        if not self._ended:
            self._arm()

    def _state_expired(self, now_s: float) -> None:
        state = self._flow.state
        if state is RequestState.QUEUED:
            self._queue_expired(now_s)
        elif state is RequestState.WAITING:
            attempt = self._flow.attempt
            attempt.give_up("no first event in time" if attempt.sent else "connecting took too long", late=True)
        elif state is RequestState.TUNNEL:
            self._on(Event.STALLED, self._responder.answering)
        elif not self._client.writable:
            self._on(Event.CLIENT_STALLED)  # the client has not read for `stream_idle_s`
        elif not self._goes_on(now_s):
            self._stalled("the worker's stream stalled")

    def _goes_on(self, now_s: float) -> bool:
        """Return whether the answer in progress, a quiet stream, may go on, because its worker works."""
        attempt = self._responder.answering
        if attempt is None or attempt.response is None or not attempt.response.events:
            return False
        worked_s = self._services.edges.worked_s(attempt, now_s)
        return self._flow.goes_on(now_s, self._responder.last_read_s, worked_s)

    def _queue_expired(self, now_s: float) -> None:
        placed = self._services.placements.queue_expired(self._outbound, now_s)
        found = "true" if isinstance(placed, Ticket) else "false"
        self._services.metrics.queue.observe(now_s - self._flow.since_s, (found,))
        if isinstance(placed, Ticket):
            for layer in self._outbound.layers:
                layer.decided(placed, now_s, 0.0)
            self._begin(placed)
        else:
            self._responder.error = placed
            self._on(Event.QUEUE_EXPIRED)

    def _stalled(self, message: str) -> None:
        self._stream_failed(Event.STALLED, ErrorKind.STREAM_IDLE_TIMEOUT, message)


_OWN_STEPS: Final[dict[Effect, Callable[[RequestDriver, Any], None]]] = {
    Effect.PLACE: RequestDriver._place,
    Effect.NEXT_LEG: RequestDriver._next_leg,
    Effect.QUEUE: RequestDriver._queue,
    Effect.HOLD: RequestDriver._hold,
    Effect.LEAVE: RequestDriver._leave,
    Effect.SEND: RequestDriver._send,
    Effect.CANCEL: RequestDriver._cancel,
    Effect.RETRY: RequestDriver._retry,
    Effect.RESPOND: RequestDriver._respond,
    Effect.SWITCH: RequestDriver._switch,
    Effect.COMMENT: RequestDriver._comment,
    Effect.END: RequestDriver._end,
}
_STEPS: Final = tuple(_OWN_STEPS.get(effect) for effect in Effect)
"""The steps that this module carries out, by effect; None for the effects in `RESPONSE_STEPS`."""

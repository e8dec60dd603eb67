from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Final, TypeAlias

from xxhash import xxh3_128_intdigest

from router.errors import ErrorKind, RequestError
from router.gateway.flow.attempt.attempt import Attempt
from router.gateway.flow.identify.model_choice import ModelChoice
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.flow.plan import Planner, RequestPlan
from router.gateway.flow.transitions import RequestState
from router.gateway.http.error_format import is_error
from router.gateway.metrics import GatewayMetrics
from router.gateway.quarantine import Quarantine
from router.gateway.queues.hold import HoldQueue
from router.gateway.queues.no_worker import NoWorkerQueue
from router.gateway.queues.request import WaitingRequest
from router.gateway.queues.route_queue import RouteQueue, RouteQueues
from router.placement.decision_log.decisions import DecisionRecord
from router.placement.dispatcher import Dispatcher
from router.placement.fleet.fleet import Fleet
from router.placement.request import FailurePoint, Request, Usage
from router.placement.retry_budget import tried
from router.placement.ticket_life import Tickets
from router.placement.tickets import RETRY_AFTER_S, Held, Queued, Reject, Ticket, lacks_worker

Placement: TypeAlias = Ticket | RequestPlan | Queued | Held | RequestError
"""Load reserved on one worker, on two that share the request, or on one that pulls; no worker is ready; the policy
holds the request; or the request is refused."""
# Module constants, because looking up a member of an enum is slow.
_PLACING: Final = RequestState.PLACING
_QUEUED: Final = RequestState.QUEUED
_HELD: Final = RequestState.HELD
_FULL: Final = Queued("every worker is at its limit of requests", at_limit=True)


@dataclass(frozen=True, slots=True)
class PlacementGate:
    """Calls the dispatcher within the limits of the quarantine and the queues.

    `longest_wait_s` is how long a request may be queued if its route says nothing.
    """

    dispatcher: Dispatcher
    tickets: Tickets
    quarantine: Quarantine
    no_worker: NoWorkerQueue
    hold_queue: HoldQueue
    metrics: GatewayMetrics
    fleet: Fleet
    longest_wait_s: float
    routes: RouteQueues
    models: ModelChoice
    planner: Planner | None = None

    def body_key(self, outbound: OutboundRequest) -> int:
        if not outbound.key and (outbound.digest is not None or outbound.body):
            digest = xxh3_128_intdigest(outbound.body) if outbound.digest is None else outbound.digest
            outbound.key = self.quarantine.key(outbound.head.path, digest)
        return outbound.key

    def within(self, outbound: OutboundRequest, failed: tuple[str, ...] = ()) -> frozenset[str] | None:
        """Return the endpoints that the request may go to; None for all.

        Raises:
            RequestError: the request may go to no endpoint.
        """
        return self.quarantine.within(self.body_key(outbound), failed) if self.quarantine.active else None

    def place(
        self, outbound: OutboundRequest, request: Request, state: RequestState, since_s: float, now_s: float
    ) -> Placement:
        """Ask for a worker. The request has been in `state` since `since_s`."""
        started_s = perf_counter()
        stopped = self._stopped(outbound, request, state) if outbound.route_slot is None else None
        if stopped is not None:
            return stopped
        try:
            within = self.within(outbound)
        except RequestError as error:
            return error
        shared = None
        if self.planner is not None:
            shared = self._shared(self.planner, outbound, request, state, now_s, within)
        if shared is None or isinstance(shared, DecisionRecord):
            placed: Placement | Reject = self._alone(outbound, request, state, now_s, within, shared)
        else:
            placed = shared
        self.metrics.decision.observe(perf_counter() - started_s)
        if isinstance(placed, Queued):
            refusal = self._queue_refusal(outbound, placed) if state is not _QUEUED else None
            return placed if refusal is None else refusal
        if state is _QUEUED:
            self.metrics.queue.observe(now_s - since_s, ("false" if isinstance(placed, Reject) else "true",))
        elif state is _HELD and not isinstance(placed, Held):
            self.metrics.hold.observe(now_s - since_s)
        return placed.error if isinstance(placed, Reject) else placed

    def _shared(
        self,
        planner: Planner,
        outbound: OutboundRequest,
        request: Request,
        state: RequestState,
        now_s: float,
        within: frozenset[str] | None,
    ) -> RequestPlan | DecisionRecord | None:
        """Plan the request's first placement on two workers or with a pull.

        To ask for one worker, return the policy's decision, or None if it has not been asked.
        """
        if outbound.plan is not None or self._others_first(outbound, request, state):
            return None
        trusted = "transfer_params" in outbound.caller.may
        return planner.begin(request, outbound.head.fields, outbound.body, now_s, within, trusted=trusted)

    def _alone(
        self,
        outbound: OutboundRequest,
        request: Request,
        state: RequestState,
        now_s: float,
        within: frozenset[str] | None,
        decided: DecisionRecord | None,
    ) -> Ticket | Held | Queued | Reject:
        """Ask for one worker, unless the policy has decided."""
        may_hold = self._may_hold(outbound, state)
        if not self.models.falls_back:
            return self.dispatcher.dispatch(request, now_s, may_hold=may_hold, within=within, decided=decided)
        may_wait = self.models.has_fallback(request) and (state is _QUEUED or self._may_wait(outbound))
        outbound.queued_for_model = None
        if self._others_first(outbound, request, state):
            placed: Ticket | Held | Queued | Reject = _FULL
        else:
            placed = self.dispatcher.dispatch(
                request, now_s, may_hold=may_hold, may_wait=may_wait, within=within, decided=decided
            )
        if isinstance(placed, Queued) and placed.at_limit:
            outbound.queued_for_model = request.model
        elif isinstance(placed, (Queued, Reject)):
            placed = self._fallback(outbound, request, placed, now_s, may_hold, within)
        return placed

    def _others_first(self, outbound: OutboundRequest, request: Request, state: RequestState) -> bool:
        """Return whether earlier requests of the model wait for room, so that this one has to wait, too."""
        if not self.models.falls_back or state is not _PLACING or not self.no_worker.any_for(request.model):
            return False
        return self.models.has_fallback(request) and self._may_wait(outbound)

    def _may_wait(self, outbound: OutboundRequest) -> bool:
        route, account = outbound.route_slot, outbound.caller.account
        return (
            self.no_worker.open
            and self.queue_s(outbound) > 0
            and (route is None or route.open)
            and (account is None or account.may_queue)
        )

    def _fallback(
        self,
        outbound: OutboundRequest,
        request: Request,
        placed: Queued | Reject,
        now_s: float,
        may_hold: bool,
        within: frozenset[str] | None,
    ) -> Ticket | Held | Queued | Reject:
        for other in self.models.instead(outbound, request) if lacks_worker(placed) else ():
            again = self.dispatcher.dispatch(other, now_s, may_hold=may_hold, within=within)
            if isinstance(again, Ticket):
                self.models.renamed += 1
                self.metrics.fallbacks.add(1.0, (request.model or "", other.model or ""))
            if isinstance(again, (Ticket, Held)):
                return again
        return placed

    def _stopped(self, outbound: OutboundRequest, request: Request, state: RequestState) -> Placement | None:
        """Count the request against its route's limit. Return the outcome if the limit stops it."""
        route = self.routes.of(request.route)
        if route is None:
            return None
        if route.admit(waited=state is _QUEUED):
            outbound.route_slot = route
            return None
        waiting = Queued(route.limit_reached)
        refusal = None if state is _QUEUED else self._refusal(outbound, route, waiting)
        return waiting if refusal is None else refusal

    def _may_hold(self, outbound: OutboundRequest, state: RequestState) -> bool:
        if not self.hold_queue.open:
            return False
        account = outbound.caller.account
        # a queued request already counts towards the tenant's limit
        return account is None or state is _QUEUED or account.may_queue

    def _queue_refusal(self, outbound: OutboundRequest, none_ready: Queued) -> RequestError | None:
        refusal = self._refusal(outbound, outbound.route_slot, none_ready)
        if refusal is None and not self.no_worker.open:
            return RequestError(ErrorKind.TOO_MANY_REQUESTS, "too many requests wait for a worker")
        return refusal

    def _refusal(self, outbound: OutboundRequest, route: RouteQueue | None, waiting: Queued) -> RequestError | None:
        account = outbound.caller.account
        if route is not None and not (route.open and self.queue_s(outbound)):
            return route.refusal(waiting.reason)
        if not self.queue_s(outbound):
            return RequestError(ErrorKind.NO_WORKER, waiting.reason)
        if account is not None and not account.may_queue:
            return account.refuse_to_queue()
        return None

    def _route_of(self, outbound: OutboundRequest) -> RouteQueue | None:
        request = outbound.request
        return None if request is None else self.routes.of(request.route)

    def queue_s(self, outbound: OutboundRequest) -> float:
        """Return the longest time that the request may be queued, in seconds."""
        route = self._route_of(outbound)
        return self.longest_wait_s if route is None or route.config.queue_s is None else route.config.queue_s

    def queue_expired(self, outbound: OutboundRequest, now_s: float) -> Ticket | RequestError:
        """Place a request that has waited for room for too long on a fallback's worker.

        Otherwise return the error for it.
        """
        route, request, full = self._route_of(outbound), outbound.request, outbound.queued_for_model is not None
        if full and request is not None and (placed := self._after_wait(outbound, request, now_s)) is not None:
            return placed
        why = "every worker was at its limit of requests" if full else "no worker became ready"
        if route is not None:
            return route.refusal(route.limit_reached if outbound.route_slot is None else f"{why} in time")
        kind = ErrorKind.OVERLOADED if full else ErrorKind.NO_WORKER
        return RequestError(kind, f"{why} for this model in time", retry_after_s=RETRY_AFTER_S if full else None)

    def _after_wait(self, outbound: OutboundRequest, request: Request, now_s: float) -> Ticket | None:
        try:
            within = self.within(outbound)
        except RequestError:
            return None
        placed = self._fallback(outbound, request, _FULL, now_s, False, within)
        return placed if isinstance(placed, Ticket) else None

    def queue(self, outbound: OutboundRequest, request: WaitingRequest) -> None:
        """Let `request` wait until its route is below its limit, or a worker is ready."""
        route = self._route_of(outbound)
        if route is not None and outbound.route_slot is None:
            route.wait(request)
            return
        if route is not None:
            route.waits_elsewhere(request)
        self.no_worker.enter(request, outbound.queued_for_model)

    def leave_queues(self, outbound: OutboundRequest, request: WaitingRequest) -> None:
        """Remove `request` from the queue that it waits in, if any."""
        route = self._route_of(outbound)
        if route is not None:
            route.leave(request)
        self.no_worker.leave(request)
        self.hold_queue.leave(request)

    def ended(self, outbound: OutboundRequest) -> None:
        self.no_worker.freed()
        route, outbound.route_slot = outbound.route_slot, None
        if route is not None:
            route.end()

    def retry(self, outbound: OutboundRequest, attempt: Attempt, now_s: float) -> Ticket | RequestError:
        """Release a failed attempt, and ask for another worker."""
        failure, ticket = attempt.failure, attempt.ticket
        assert failure is not None
        why = (failure.point, now_s, failure.reason, failure.retry_after_s)
        try:
            within = self.within(outbound, tried(ticket))
        except RequestError as error:
            self.tickets.failed(ticket, *why)
            return error
        again = self.dispatcher.retry(ticket, *why, within=within)
        if isinstance(again, Reject):
            if self.models.falls_back and failure.point is FailurePoint.REFUSED:
                other = self._fallback(outbound, ticket.request, again, now_s, False, within)
                if isinstance(other, Ticket):
                    return other
            return again.error
        self.metrics.retries.add(1.0, (failure.point.value,))
        return again

    def replaceable(self, outbound: OutboundRequest, ticket: Ticket, point: FailurePoint, now_s: float) -> bool:
        """Return whether another worker is ready to take over from an attempt that fails at `point`."""
        try:
            within = self.within(outbound, tried(ticket))
        except RequestError:
            return False
        return self.dispatcher.has_alternative(ticket, point, now_s, within=within)

    def should_discard(self, outbound: OutboundRequest, attempt: Attempt, now_s: float, *, commented: bool) -> bool:
        """Return whether the client should not get a complete server error, or a complete 404 about the model.

        True if another worker can take over, or if the error cannot become an event of a stream.
        """
        failure, connection, model = attempt.failure, attempt.connection, attempt.ticket.request.model
        assert failure is not None and connection is not None
        if failure.point is FailurePoint.UNSERVED and model is not None:
            self.fleet.unknown_model(model)
        if self.replaceable(outbound, attempt.ticket, failure.point, now_s):
            return True
        # After comments, the error must become an event of the stream, which needs the API's error format.
        erred = failure.point is FailurePoint.ANSWERED
        return erred and commented and not is_error(b"".join(connection.pieces))

    def suspect(self, outbound: OutboundRequest, attempt: Attempt, *, lost: bool) -> None:
        """Notify the quarantine that the request may have crashed the attempt's worker.

        `lost`: the connection broke; otherwise the worker answered with a server error.
        """
        endpoint = attempt.ticket.candidate.endpoint
        self.quarantine.failed(endpoint, self.body_key(outbound), attempt.connected_s, lost=lost)

    def opened(self, outbound: OutboundRequest, attempt: Attempt, now_s: float) -> None:
        if attempt.response is not None and attempt.response.events and not attempt.refused:
            self.tickets.first_token(attempt.ticket, now_s)
        if self.quarantine.active:
            self.quarantine.survived(self.body_key(outbound))

    def worked_s(self, attempt: Attempt, now_s: float) -> float:
        """Return when the attempt's worker last worked on any request, as far as it shows.

        That is when its token counters moved. Of a worker without counters, bytes of its answers show it.
        """
        evidence = self.fleet.evidence(attempt.ticket.candidate.endpoint, now_s)
        return evidence.generation_s if evidence.counts_tokens else evidence.progress_s

    def finish(self, outbound: OutboundRequest, attempt: Attempt, usage: Usage, now_s: float) -> None:
        if outbound.digest is not None or self.quarantine.active:
            self.quarantine.answered(self.body_key(outbound), now_s, identified=outbound.digest is not None)
        self.tickets.finished(attempt.ticket, usage, now_s, status=attempt.status)

    def fail(self, attempt: Attempt, now_s: float) -> None:
        failure = attempt.failure
        assert failure is not None
        self.tickets.failed(attempt.ticket, failure.point, now_s, failure.reason, failure.retry_after_s)

    def cancel(self, attempt: Attempt, now_s: float) -> None:
        """Abort an attempt and release it. A tunnel counts as finished, because its client was served."""
        attempt.let_go(reusable=False)
        if attempt.switched:
            self.tickets.finished(attempt.ticket, Usage(), now_s)
        else:
            self.tickets.cancelled(attempt.ticket, now_s)

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import IntEnum
from time import perf_counter
from typing import Final, Protocol, TypeAlias

from xxhash import xxh3_128_intdigest

from router.errors import ErrorKind, RequestError
from router.placement.decision_log.decisions import DecisionRecord
from router.placement.dispatcher import Dispatcher
from router.placement.fleet.fleet import Fleet
from router.placement.request import Request
from router.placement.ticket_life import Tickets
from router.placement.tickets import RETRY_AFTER_S, Held, Queued, Reject, Ticket, lacks_worker
from router.requests.identify.model_choice import ModelChoice
from router.requests.incoming import IncomingRequest
from router.requests.layer import Features
from router.requests.metrics import GatewayMetrics
from router.requests.ordered_queue import OrderedQueue
from router.requests.queues.hold import HoldQueue
from router.requests.queues.limited import LimitedQueue
from router.requests.queues.no_worker import NoWorkerQueue
from router.requests.queues.quarantine import Quarantine
from router.requests.queues.request import WaitingRequest


class SharedPlacement:
    """Load reserved on two workers that share a request, or on one that pulls."""

    __slots__ = ()

    @property
    def noted(self) -> Ticket:
        """The placement by which the decision is known."""
        raise NotImplementedError


Placement: TypeAlias = Ticket | SharedPlacement | Queued | Held | RequestError
"""Load reserved; no worker is ready; the policy holds the request; or the request is refused."""


class Planner(Protocol):
    """Decides whether workers share a request."""

    def begin(
        self,
        request: Request,
        headers: Mapping[bytes, bytes],
        body: bytes,
        now_s: float,
        within: Container[str] | None,
        *,
        trusted: bool,
    ) -> SharedPlacement | DecisionRecord | None:
        """Return a plan whose load is reserved, if it costs less than one worker.

        Otherwise return what the policy has decided meanwhile, or None if it was not asked.
        """


class Waited(IntEnum):
    """Where a request has waited for the worker that it asks for."""

    NOWHERE = 0
    QUEUE = 1
    HOLD = 2


# Module constants, because looking up a member of an enum is slow.
_NOWHERE: Final = Waited.NOWHERE
_QUEUE: Final = Waited.QUEUE
_HOLD: Final = Waited.HOLD
_FULL: Final = Queued("every worker is at its limit of requests", at_limit=True)


@dataclass(frozen=True, slots=True)
class PlacementGate:
    """Calls the dispatcher within the limits of the quarantine and the queues.

    `longest_wait_s` is how long a request may be queued if no feature says it.
    """

    dispatcher: Dispatcher
    tickets: Tickets
    quarantine: Quarantine
    no_worker: NoWorkerQueue
    hold_queue: HoldQueue
    metrics: GatewayMetrics
    fleet: Fleet
    longest_wait_s: float
    features: Features
    models: ModelChoice
    planner: Planner | None = None
    classes: OrderedQueue | None = None

    def body_key(self, incoming: IncomingRequest) -> int:
        if not incoming.key and (incoming.digest is not None or incoming.body):
            digest = xxh3_128_intdigest(incoming.body) if incoming.digest is None else incoming.digest
            incoming.key = self.quarantine.key(incoming.head.path, digest)
        return incoming.key

    def within(self, incoming: IncomingRequest, failed: tuple[str, ...] = ()) -> frozenset[str] | None:
        """Return the endpoints that the request may go to; None for all.

        Raises:
            RequestError: the request may go to no endpoint.
        """
        within = self.quarantine.within(self.body_key(incoming), failed) if self.quarantine.active else None
        asked = incoming.within
        if asked is None:
            return within
        ids = within if within is not None else [endpoint.id for endpoint in self.fleet.endpoints]
        return frozenset(one for one in ids if one in asked)

    def place(
        self, incoming: IncomingRequest, request: Request, waited: Waited, since_s: float, now_s: float
    ) -> Placement:
        """Ask for a worker. It has waited since `since_s`."""
        started_s = perf_counter()
        stopped = self._stopped(incoming, request, waited) if incoming.admitted_by is None else None
        if stopped is not None:
            return stopped
        try:
            within = self.within(incoming)
        except RequestError as error:
            return error
        shared = None
        if self.planner is not None:
            shared = self._shared(self.planner, incoming, request, waited, now_s, within)
        if shared is None or isinstance(shared, DecisionRecord):
            placed: Placement | Reject = self._alone(incoming, request, waited, now_s, within, shared)
        else:
            placed = shared
        self.metrics.decision.observe(perf_counter() - started_s)
        if isinstance(placed, Queued):
            refusal = self._queue_refusal(incoming, placed) if waited is not _QUEUE else None
            return placed if refusal is None else refusal
        if waited is _QUEUE:
            self.metrics.queue.observe(now_s - since_s, ("false" if isinstance(placed, Reject) else "true",))
        elif waited is _HOLD and not isinstance(placed, Held):
            self.metrics.hold.observe(now_s - since_s)
        return placed.error if isinstance(placed, Reject) else placed

    def _shared(
        self,
        planner: Planner,
        incoming: IncomingRequest,
        request: Request,
        waited: Waited,
        now_s: float,
        within: frozenset[str] | None,
    ) -> SharedPlacement | DecisionRecord | None:
        """Plan the request's first placement on two workers or with a pull.

        To ask for one worker, return the policy's decision, or None if it has not been asked.
        """
        if incoming.ticket is not None or self._others_first(incoming, request, waited):
            return None
        trusted = "transfer_params" in incoming.caller.may
        return planner.begin(request, incoming.head.fields, incoming.body, now_s, within, trusted=trusted)

    def _alone(
        self,
        incoming: IncomingRequest,
        request: Request,
        waited: Waited,
        now_s: float,
        within: frozenset[str] | None,
        decided: DecisionRecord | None,
    ) -> Ticket | Held | Queued | Reject | RequestError:
        """Ask for one worker, unless the policy has decided."""
        if self.classes is not None and request.pinned is None and incoming.route.prefills:
            ordered = self.classes.ask(incoming, request, now_s, within)
            if self.models.falls_back and isinstance(ordered, (Queued, Reject)):
                return self.fallback(incoming, request, ordered, now_s, False, within)
            return ordered
        may_hold = self._may_hold(incoming, waited)
        if not self.models.falls_back:
            return self.dispatcher.dispatch(request, now_s, may_hold=may_hold, within=within, decided=decided)
        may_wait = self.models.has_fallback(request) and (waited is _QUEUE or self._may_wait(incoming))
        incoming.queued_for_model = None
        if self._others_first(incoming, request, waited):
            placed: Ticket | Held | Queued | Reject = _FULL
        else:
            placed = self.dispatcher.dispatch(
                request, now_s, may_hold=may_hold, may_wait=may_wait, within=within, decided=decided
            )
        if isinstance(placed, Queued) and placed.at_limit:
            incoming.queued_for_model = request.model
        elif isinstance(placed, (Queued, Reject)):
            placed = self.fallback(incoming, request, placed, now_s, may_hold, within)
        return placed

    def _others_first(self, incoming: IncomingRequest, request: Request, waited: Waited) -> bool:
        """Return whether earlier requests of the model wait for room, so that this one has to wait, too."""
        if not self.models.falls_back or waited is not _NOWHERE or not self.no_worker.any_for(request.model):
            return False
        return self.models.has_fallback(request) and self._may_wait(incoming)

    def _may_wait(self, incoming: IncomingRequest) -> bool:
        queue, account = incoming.admitted_by, incoming.caller.account
        return (
            self.no_worker.open
            and self.queue_s(incoming) > 0
            and (queue is None or queue.open)
            and (account is None or account.may_queue)
        )

    def fallback(
        self,
        incoming: IncomingRequest,
        request: Request,
        placed: Queued | Reject,
        now_s: float,
        may_hold: bool,
        within: frozenset[str] | None,
    ) -> Ticket | Held | Queued | Reject:
        for other in self.models.instead(incoming, request) if lacks_worker(placed) else ():
            again = self.dispatcher.dispatch(other, now_s, may_hold=may_hold, within=within)
            if isinstance(again, Ticket):
                self.models.renamed += 1
                self.metrics.fallbacks.add(1.0, (request.model or "", other.model or ""))
            if isinstance(again, (Ticket, Held)):
                return again
        return placed

    def _stopped(self, incoming: IncomingRequest, request: Request, waited: Waited) -> Placement | None:
        """Count the request against the limit of its queue, if it has one. Return the outcome if the limit stops it."""
        queue = self.features.queue(request)
        if queue is None:
            return None
        if queue.admit(waited=waited is _QUEUE):
            incoming.admitted_by = queue
            return None
        waiting = Queued(queue.limit_reached)
        refusal = None if waited is _QUEUE else self._refusal(incoming, queue, waiting)
        return waiting if refusal is None else refusal

    def _may_hold(self, incoming: IncomingRequest, waited: Waited) -> bool:
        if not self.hold_queue.open:
            return False
        account = incoming.caller.account
        # a queued request already counts towards the tenant's limit
        return account is None or waited is _QUEUE or account.may_queue

    def _queue_refusal(self, incoming: IncomingRequest, none_ready: Queued) -> RequestError | None:
        refusal = self._refusal(incoming, incoming.admitted_by, none_ready)
        if refusal is None and not self.no_worker.open:
            return RequestError(ErrorKind.TOO_MANY_REQUESTS, "too many requests wait for a worker")
        return refusal

    def _refusal(self, incoming: IncomingRequest, queue: LimitedQueue | None, waiting: Queued) -> RequestError | None:
        account = incoming.caller.account
        if queue is not None and not (queue.open and self.queue_s(incoming)):
            return queue.refusal(waiting.reason)
        if not self.queue_s(incoming):
            return RequestError(ErrorKind.NO_WORKER, waiting.reason)
        if account is not None and not account.may_queue and not incoming.begun:
            return account.refuse_to_queue()
        return None

    def _queue_of(self, incoming: IncomingRequest) -> LimitedQueue | None:
        request = incoming.request
        return None if request is None else self.features.queue(request)

    def queue_s(self, incoming: IncomingRequest) -> float:
        """Return the longest time that the request may be queued, in seconds."""
        queue = self._queue_of(incoming)
        own_s = None if queue is None else queue.longest_wait_s
        return self.longest_wait_s if own_s is None else own_s

    def hold_expired(self, incoming: IncomingRequest, request: Request, now_s: float) -> Placement:
        """Place a request for which nobody waits any longer without a hold, or refuse it if its turn has not come."""
        late = None if self.classes is None else self.classes.overdue(incoming)
        if late is not None:
            self.metrics.hold.observe(now_s - incoming.arrived_s)
            return late
        placed = self.dispatcher.dispatch(request, now_s, within=self.within(incoming))
        return placed.error if isinstance(placed, Reject) else placed

    def queue_expired(self, incoming: IncomingRequest, now_s: float) -> Ticket | RequestError:
        """Place a request that has waited for room for too long on a fallback's worker.

        Otherwise return the error for it.
        """
        queue, request, full = self._queue_of(incoming), incoming.request, incoming.queued_for_model is not None
        if full and request is not None and (placed := self._after_wait(incoming, request, now_s)) is not None:
            return placed
        why = "every worker was at its limit of requests" if full else "no worker became ready"
        if queue is not None:
            return queue.refusal(queue.limit_reached if incoming.admitted_by is None else f"{why} in time")
        kind = ErrorKind.OVERLOADED if full else ErrorKind.NO_WORKER
        return RequestError(kind, f"{why} for this model in time", retry_after_s=RETRY_AFTER_S if full else None)

    def _after_wait(self, incoming: IncomingRequest, request: Request, now_s: float) -> Ticket | None:
        try:
            within = self.within(incoming)
        except RequestError:
            return None
        placed = self.fallback(incoming, request, _FULL, now_s, False, within)
        return placed if isinstance(placed, Ticket) else None

    def queue(self, incoming: IncomingRequest, request: WaitingRequest) -> None:
        """Let `request` wait until its queue admits it, or a worker is ready."""
        queue = self._queue_of(incoming)
        if queue is not None and incoming.admitted_by is None:
            queue.wait(request)
            return
        if queue is not None:
            queue.waits_elsewhere(request)
        self.no_worker.enter(request, incoming.queued_for_model)

    def hold(self, incoming: IncomingRequest, request: WaitingRequest, held: Held) -> None:
        """Let `request` wait for its turn in its class, or for as long as the policy holds it."""
        if self.classes is None or not self.classes.enter(incoming, request):
            self.hold_queue.enter(request, held)

    def leave_queues(self, incoming: IncomingRequest, request: WaitingRequest) -> None:
        """Remove `request` from the queue that it waits in, if any."""
        queue = self._queue_of(incoming)
        if queue is not None:
            queue.leave(request)
        self.no_worker.leave(request)
        self.hold_queue.leave(request)
        if self.classes is not None:
            self.classes.leave(incoming)

    def ended(self, incoming: IncomingRequest) -> None:
        self.no_worker.freed()
        queue, incoming.admitted_by = incoming.admitted_by, None
        if queue is not None:
            queue.end()

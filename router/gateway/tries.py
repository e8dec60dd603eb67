"""The attempts at one request: one after another."""

from __future__ import annotations

from abc import abstractmethod

from xxhash import xxh3_128_intdigest

from router.errors import RequestError
from router.gateway.attempt import Attempt, Owner
from router.gateway.books import Books
from router.gateway.phases import Phase
from router.gateway.relay import Relay
from router.gateway.rewrites.body_rewriter import OutgoingBody, RequestRewrites
from router.placement.endpoints import FleetEndpoint
from router.placement.lifecycle_events import FailurePoint
from router.placement.tickets import Reject, Ticket
from router.security.callers import Caller


class Tries(Owner):
    """The half of an exchange that tries workers. A base class and no part of its own: a request makes enough objects.

    `ticket` is what is booked for `_attempt`.
    """

    relay: Relay
    ticket: Ticket | None
    body: bytes
    caller: Caller
    _attempt: Attempt | None
    body_digest: int | None
    """The body's, where it has been read; else it is computed when it is asked for."""
    _key = 0
    _rewriting: RequestRewrites | None
    _books: Books

    @property
    def body_key(self) -> int:
        """What `quarantine` knows the request by; 0 for one without a body, which is never suspected."""
        if not self._key and (self.body_digest is not None or self.body):
            digest = self.body_digest
            digest = xxh3_128_intdigest(self.body) if digest is None else digest
            self._key = self.plane.quarantine.key(self.head.path, digest)
        return self._key

    @property
    def unanswered(self) -> tuple[FleetEndpoint, ...]:
        """The endpoints that have the request, and have not begun to answer it."""
        ticket = self.ticket
        return (ticket.candidate.endpoint,) if ticket is not None and self.phase is Phase.FIRST_EVENT else ()

    def within(self) -> frozenset[str] | None:
        """The endpoints that the request may go to; None: all.

        Raises:
            RequestError: it may go to none.
        """
        quarantine = self.plane.quarantine
        return quarantine.within(self) if quarantine.active else None

    @abstractmethod
    def _answer(self, error: RequestError) -> None:
        """Answer with an error of ours."""

    def _try(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self._books.worker = ticket.candidate.id
        self._attempt = Attempt(self, ticket)
        self._attempt.begin()

    def outgoing(self, ticket: Ticket) -> OutgoingBody:
        """What goes to the ticket's worker."""
        if self._rewriting is None:
            return OutgoingBody(self.body)
        return self._rewriting.outgoing(self.body, ticket, self.plane.time())

    def replaceable(self, phase: FailurePoint) -> bool:
        """Whether another worker is ready to take the request."""
        ticket = self.ticket
        try:
            within = self.within()
        except RequestError:
            return False
        now_s = self.plane.time()
        return ticket is not None and self.plane.dispatcher.has_alternative(ticket, phase, now_s, within=within)

    def attempt_failed(self, phase: FailurePoint, reason: str, retry_after_s: float | None = None) -> None:
        """Nothing of this attempt has reached the client: another worker may answer."""
        assert self.ticket is not None
        ticket, self.ticket = self.ticket, None
        plane = self.plane
        try:
            within = self.within()
        except RequestError as error:
            plane.dispatcher.failed(ticket, phase, plane.time(), reason, retry_after_s)
            self._answer(error)
            return
        outcome = plane.dispatcher.retry(ticket, phase, plane.time(), reason, retry_after_s, within=within)
        if isinstance(outcome, Reject):
            self._answer(outcome.error)
            return
        plane.metrics.retried(phase)
        self._try(outcome)

    @property
    def awaited(self) -> FleetEndpoint | None:
        """The endpoint whose first event is being waited for."""
        waiting = self.phase in (Phase.DIAL, Phase.FIRST_EVENT) and self.ticket is not None
        return self.ticket.candidate.endpoint if waiting and self.ticket is not None else None

    def endpoint_lost(self) -> None:
        """`awaited` is ejected or gone: do not wait for it where another worker is ready."""
        phase = FailurePoint.CONNECT if self.phase is Phase.DIAL else FailurePoint.SENT
        if self.replaceable(phase):
            self._let_go(reusable=False)
            self.attempt_failed(phase, "the worker was ejected or removed while the request waited for it")

    def _let_go(self, reusable: bool) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.let_go(reusable=reusable)

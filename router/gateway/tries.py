"""The attempts at one request: one after another, or two at once where the second is a hedge."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from xxhash import xxh3_128_intdigest

from router.errors import RequestError
from router.gateway.attempt import Attempt, Owner
from router.gateway.books import Books
from router.gateway.hedge import Hedge
from router.gateway.phases import Phase
from router.gateway.relay import Relay
from router.gateway.rewrites import Outgoing, Rewriting
from router.placement.endpoints import FleetEndpoint
from router.placement.lifecycle_events import FailurePhase
from router.placement.tickets import Reject, Ticket
from router.security.callers import Caller


class Tries(Owner):
    """The half of an exchange that tries workers. A base class and no part of its own: a request makes enough objects.

    `ticket` is what is booked for `_attempt`; `_hedge` is a second attempt, planned or under way.
    """

    relay: Relay
    ticket: Ticket | None
    body: bytes
    caller: Caller
    _attempt: Attempt | None
    _hedge: Hedge | None = None
    body_digest: int | None
    """The body's, where it has been read; else it is computed when it is asked for."""
    _key = 0
    _rewriting: Rewriting | None
    _books: Books
    _phase_began_s: float

    @property
    def whole(self) -> Tries:
        """The exchange."""
        return self

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
        ticket, hedge = self.ticket, self._hedge
        first = (ticket.candidate.endpoint,) if ticket is not None and self.phase is Phase.FIRST_EVENT else ()
        if hedge is None or hedge.ticket is None or hedge.phase is not Phase.FIRST_EVENT:
            return first
        return (*first, hedge.ticket.candidate.endpoint)

    def within(self) -> frozenset[str] | None:
        """The endpoints that the request may go to; None: all.

        Raises:
            RequestError: it may go to none.
        """
        quarantine = self.plane.quarantine
        return quarantine.within(self) if quarantine.active else None

    @abstractmethod
    def progressed(self, gaps_s: Sequence[float], events: int, now_s: float) -> None:
        """A batch of reads of the answer."""

    @abstractmethod
    def _answer(self, error: RequestError) -> None:
        """Answer with an error of ours."""

    @abstractmethod
    def _arm(self) -> None:
        """Set the time at which deadlines are looked at."""

    def _try(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self._books.worker = ticket.candidate.id
        self._attempt = Attempt(self, ticket)
        self._attempt.begin()

    def outgoing(self, ticket: Ticket) -> Outgoing:
        """What goes to the ticket's worker."""
        if self._rewriting is None:
            return Outgoing(self.body)
        return self._rewriting.outgoing(self.body, ticket, self.plane.time())

    def replaceable(self, phase: FailurePhase) -> bool:
        """Whether another worker has the request, too, or one is ready to take it."""
        ticket, hedge = self.ticket, self._hedge
        if hedge is not None and hedge.running:
            return True
        try:
            within = self.within()
        except RequestError:
            return False
        now_s = self.plane.time()
        return ticket is not None and self.plane.dispatcher.has_alternative(ticket, phase, now_s, within=within)

    def attempt_failed(self, phase: FailurePhase, reason: str, retry_after_s: float | None = None) -> None:
        """Nothing of this attempt has reached the client: another worker may answer."""
        assert self.ticket is not None
        ticket, self.ticket = self.ticket, None
        plane = self.plane
        hedge = self._hedge
        if hedge is not None and hedge.ticket is not None:
            plane.dispatcher.hedge_left(hedge.ticket, ticket, phase, plane.time(), reason, retry_after_s)
            self._take_over(hedge, "took_over")
            return
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
        phase = FailurePhase.CONNECT if self.phase is Phase.DIAL else FailurePhase.SENT
        if self.replaceable(phase):
            self._let_go(reusable=False)
            self.attempt_failed(phase, "the worker was ejected or removed while the request waited for it")

    def _let_go(self, reusable: bool) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.let_go(reusable=reusable)

    # two at once

    def hedge_won(self, hedge: Hedge) -> None:
        """The second attempt answers first: the first one's worker is let go at once."""
        self._let_go(reusable=False)
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            self.plane.dispatcher.lost(ticket, self.plane.time())
        self._take_over(hedge, "won")

    def hedge_failed(self, hedge: Hedge, phase: FailurePhase, reason: str, retry_after_s: float | None) -> None:
        """The second attempt is out of the race; the first goes on."""
        assert self.ticket is not None and hedge.ticket is not None
        self._hedge = None
        plane = self.plane
        plane.metrics.hedged("failed")
        plane.dispatcher.hedge_left(self.ticket, hedge.ticket, phase, plane.time(), reason, retry_after_s)

    def _take_over(self, hedge: Hedge, outcome: str) -> None:
        """The second attempt is the only one from now on."""
        assert hedge.ticket is not None and hedge.attempt is not None
        self._hedge = None
        self.plane.metrics.hedged(outcome)
        self.relay.close()
        self.relay, self.ticket, self._attempt = hedge.relay, hedge.ticket, hedge.attempt
        hedge.attempt.owner, hedge.attempt = self, None
        self._books.worker = hedge.ticket.candidate.id
        self.phase, self._phase_began_s = hedge.phase, hedge.phase_began_s
        self._arm()
        if outcome != "won" and self.plane.fleet.lost(hedge.ticket.candidate.endpoint):
            self.endpoint_lost()

    def _end_race(self) -> None:
        """The first attempt answers, or nobody is to answer any more."""
        hedge, self._hedge = self._hedge, None
        if hedge is not None:
            hedge.cancel()

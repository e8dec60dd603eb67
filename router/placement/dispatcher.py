from __future__ import annotations

from collections.abc import Container

from policies.view import Decision
from router.errors import ErrorKind
from router.placement.decision_log.decisions import DecisionRecord
from router.placement.fleet.fleet import Fleet
from router.placement.metrics import PlacementMetrics
from router.placement.placer import Placer
from router.placement.request import FailurePoint, Request
from router.placement.retry_budget import FREE, RetryBudget, longest, tried
from router.placement.selection import HasRoom, Selection, Selector, hold, with_room
from router.placement.ticket_life import Tickets
from router.placement.tickets import Counts, Held, NoRoom, Queued, Reject, Ticket, gave_up

__all__ = ["Dispatcher", "Held", "Queued", "Reject", "Ticket"]


class Dispatcher:
    """Choose a worker for each request, reserve its load in the same step, and choose another one after a failure."""

    def __init__(
        self,
        fleet: Fleet,
        selector: Selector,
        placer: Placer,
        tickets: Tickets,
        budget: RetryBudget,
        metrics: PlacementMetrics,
        counts: Counts,
    ) -> None:
        self._fleet = fleet
        self._selector = selector
        self._placer = placer
        self._tickets = tickets
        self._budget = budget
        self._metrics = metrics
        self._counts = counts

    def dispatch(
        self,
        request: Request,
        now_s: float,
        *,
        may_hold: bool = False,
        may_wait: bool = False,
        within: Container[str] | None = None,
        decided: DecisionRecord | None = None,
    ) -> Ticket | Held | Queued | Reject:
        """Choose a candidate and reserve the request's load there, in one step.

        With `may_hold` the policy may hold the request instead, provided that its prompt has a known and acceptable
        length: holding other requests gains nothing. With `may_wait` it is queued, not rejected, while every candidate
        is at its limit of reserved requests. `within` limits the endpoints. `decided` is what the policy has decided
        just now for a plan that was not made, so that it is not asked twice.
        """
        if decided is None:
            found = self._decide(request, now_s, within, may_wait=may_wait)
            if not isinstance(found, DecisionRecord):
                return found
            decided = found
        held = hold(request, decided.candidates, decided.decision, now_s) if may_hold else None
        return self._placer.place(request, decided, now_s, attempt=1) if held is None else held

    def dispatch_with_room(
        self, request: Request, now_s: float, has_room: HasRoom, within: Container[str] | None = None
    ) -> Ticket | NoRoom | Queued | Reject:
        """Choose the best candidate that has room for the request, and reserve its load there; it is never held."""
        decided = self._decide(request, now_s, within, may_wait=False)
        if not isinstance(decided, DecisionRecord):
            return decided
        if not with_room(decided, has_room):
            return NoRoom(decided)
        return self._placer.place(request, decided, now_s, attempt=1)

    def _decide(
        self, request: Request, now_s: float, within: Container[str] | None, *, may_wait: bool
    ) -> DecisionRecord | Queued | Reject:
        selection = self._selector.select(request, (), now_s, within)
        if may_wait and isinstance(selection, Reject) and selection.at_limit:
            selection = Queued(selection.error.message, at_limit=True)
        if isinstance(selection, Queued):
            self._counts["queued"] += 1
            return selection
        if isinstance(selection, Reject):
            if selection.error.kind is ErrorKind.MODEL_NOT_FOUND and request.model is not None:
                self._fleet.unknown_model(request.model)
            return self._reject(selection)
        return self._placer.decide(request, selection, now_s)

    @property
    def limit(self) -> int:
        """The most reserved requests of a worker; 0 for no limit."""
        return self._selector.limit

    def survey(
        self, request: Request, now_s: float, within: Container[str] | None = None, *, at_limit: bool = False
    ) -> DecisionRecord | Queued | Reject:
        """Return what is known of the candidates for a request that has to wait, without a decision.

        With `at_limit` these include candidates at their limit of reserved requests.
        """
        selection = self._selector.select(request, (), now_s, within, at_limit=at_limit)
        return self._placer.see(request, selection, now_s) if isinstance(selection, Selection) else selection

    def retry(
        self,
        ticket: Ticket,
        point: FailurePoint,
        now_s: float,
        reason: str,
        retry_after_s: float | None = None,
        *,
        within: Container[str] | None = None,
    ) -> Ticket | Reject:
        """Place the request on another worker after a failed attempt of which the client has seen nothing, or give up.

        With the usual three attempts there are up to two alternatives after `CONNECT`, `REFUSED`, `UNSERVED` and
        `STOPPING`, one after `SENT` and `ANSWERED`, and none after `STREAM`. There is none for a ticket that has ended
        (for example because its client left), and none beyond the retry budget. A retry after `CONNECT` or `STOPPING`
        costs no budget, since no worker spent work on it. `within` limits the endpoints.
        """
        if ticket.ended:
            return gave_up(point, reason, retry_after_s)
        self._tickets.failed(ticket, point, now_s, reason, retry_after_s)
        refusal_s = longest(ticket.refusal_s, retry_after_s)
        selection = self._alternatives(ticket, point, now_s, within)
        if selection is None or not self._budget.pay(point, now_s):
            return self._reject(gave_up(point, reason, refusal_s))
        decided = self._placer.decide(ticket.request, selection, now_s)
        again = self._placer.place(ticket.request, decided, now_s, ticket.attempt + 1)
        self._budget.follow(ticket, again, point, refusal_s)
        if point is FailurePoint.ANSWERED:
            again.suspect = (ticket.candidate.endpoint, reason)
        return again

    def follow(self, ticket: Ticket, endpoint_id: str, now_s: float) -> Ticket | None:
        """Move the request's load to the endpoint that serves it, because a proxy has chosen another one.

        None if the fleet has no such endpoint, or it is not ready. The time to its first token teaches nothing, because
        the worker has the request for longer than its ticket says.
        """
        self._tickets.moved(ticket, now_s, endpoint_id)
        selection = self._selector.select(ticket.request, (), now_s, (endpoint_id,))
        if not isinstance(selection, Selection):
            return None
        seen = self._placer.see(ticket.request, selection, now_s)
        seen.decision = Decision(seen.fleet.ids, "another proxy's choice")
        again = self._placer.place(ticket.request, seen, now_s, ticket.attempt + 1, by_policy=False)
        again.situation = None
        return again

    def has_alternative(
        self, ticket: Ticket, point: FailurePoint, now_s: float, *, within: Container[str] | None = None
    ) -> bool:
        """Return whether `retry` would find a ready worker (not only a half-open one) within the retry budget."""
        if point not in FREE and not self._budget.affords(now_s):
            return False
        selection = None if ticket.ended else self._alternatives(ticket, point, now_s, within)
        return selection is not None and selection.ready

    def run_plain(self, ticket: Ticket, reason: str, now_s: float) -> bool:
        """Release an attempt that did not get its KV cache. Return whether the request may run again without one."""
        self._tickets.not_handed_over(ticket, now_s, reason)
        return self._budget.pay(FailurePoint.SENT, now_s)

    def _alternatives(
        self, ticket: Ticket, point: FailurePoint, now_s: float, within: Container[str] | None
    ) -> Selection | None:
        if self._budget.exhausted(ticket, point):
            return None
        selection = self._selector.select(ticket.request, tried(ticket), now_s, within)
        return selection if isinstance(selection, Selection) else None

    def _reject(self, reject: Reject) -> Reject:
        self._counts["rejected"] += 1
        return reject

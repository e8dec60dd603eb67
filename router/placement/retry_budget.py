"""Retries of a request: their number, their cost, and the history that they inherit from earlier attempts."""

from __future__ import annotations

from typing import Any, Final

from router.config.model import RetriesConfig
from router.metrics.instruments import Counter
from router.placement.attempt_budget import AttemptBudget
from router.placement.request import FailurePoint
from router.placement.tickets import Ticket

MAX_SENT_FAILURES = 2
"""The most attempts that may fail after the request was sent: a request that crashes engines must not reach all of
them."""


_FLOOR_PER_S = 3.0
"""Retries per second that are always allowed, so that a gateway with few requests can retry."""


class RetryBudget:
    """The limit on the attempts at one request, and the retry budget that all requests share.

    `refused` counts retries that were possible but exceeded the budget.
    """

    __slots__ = ("_budget", "_max_attempts", "_refused")

    def __init__(self, retries: RetriesConfig | None, refused: Counter) -> None:
        retries = retries or RetriesConfig()
        self._max_attempts = retries.max_attempts
        self._budget = AttemptBudget(retries.budget_ratio, _FLOOR_PER_S if retries.budget_ratio else 0.0)
        self._refused = refused

    def exhausted(self, ticket: Ticket, point: FailurePoint) -> bool:
        if point in (FailurePoint.STREAM, FailurePoint.LOCAL) or ticket.attempt >= self._max_attempts:
            return True
        return sent_failures(ticket, point) >= MAX_SENT_FAILURES

    def pay(self, requests: int, now_s: float) -> bool:
        paid = self._budget.take(requests, now_s)
        if not paid:
            self._refused.add()
        return paid

    def affords(self, requests: int, now_s: float) -> bool:
        """Return whether the budget allows one retry; `requests` is the total so far."""
        return self._budget.affords(requests, now_s)

    def statistics(self) -> dict[str, Any]:
        return {"retry_budget": self._budget.statistics()}


FREE: Final = frozenset({FailurePoint.CONNECT, FailurePoint.STOPPING})
"""Failures whose retry costs no budget, because no worker has worked for the request."""


def follow(ticket: Ticket, again: Ticket, point: FailurePoint, refusal_s: float | None) -> None:
    again.tried = tried(ticket)
    again.refusal_s = longest(ticket.refusal_s, refusal_s)
    again.sent_failures = sent_failures(ticket, point)


def longest(*pauses_s: float | None) -> float | None:
    return max((pause_s for pause_s in pauses_s if pause_s is not None), default=None)


def tried(ticket: Ticket) -> tuple[str, ...]:
    """Return the endpoints that further attempts leave out."""
    return (*ticket.tried, ticket.candidate.endpoint.id)


def sent_failures(ticket: Ticket, point: FailurePoint) -> int:
    """Return the attempts that failed after the request was sent, `ticket` at `point` included."""
    return ticket.sent_failures + (point in (FailurePoint.SENT, FailurePoint.LATE, FailurePoint.ANSWERED))

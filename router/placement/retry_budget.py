"""Retries of a request: their number, their cost, and the history that they inherit from earlier attempts."""

from __future__ import annotations

import math
from typing import Final

from router.config.model import RetriesConfig
from router.metrics.instruments import Counter
from router.placement.request import FailurePoint
from router.placement.tickets import Counts, Ticket

MAX_SENT_FAILURES = 2
"""The most attempts that may fail after the request was sent: a request that crashes engines must not reach all of
them."""


_FLOOR_PER_S = 3.0
"""Retries per second that are always allowed, so that a gateway with few requests can retry."""


WINDOW_S = 30.0
"""The budget holds at most the income of this time. A worker that dies fails all its prefills at once, and each is
worth a retry. At 20 % and four workers these retries take the income of several seconds."""


class AttemptBudget:
    """A bucket that gains `ratio` per request and `floor_per_s` per second, and loses one per retry.

    It is filled when it is read, from the number of requests so far, so that a request costs no time here. It holds
    the income of `WINDOW_S`, but at least one attempt.
    """

    __slots__ = ("_at_s", "_balance", "_floor_per_s", "_rate_per_s", "_ratio", "_requests")

    def __init__(self, ratio: float, floor_per_s: float) -> None:
        self._ratio = ratio
        self._floor_per_s = floor_per_s
        self._at_s: float | None = None
        self._requests = 0
        self._rate_per_s = 0.0
        self._balance = 0.0

    def take(self, requests: int, now_s: float) -> bool:
        if not self.affords(requests, now_s):
            return False
        self._balance -= 1.0
        return True

    def affords(self, requests: int, now_s: float) -> bool:
        """Return whether the budget allows one retry; `requests` is the total so far."""
        self._fill(requests, now_s)
        return self._balance >= 1.0

    def _fill(self, requests: int, now_s: float) -> None:
        came, self._requests = requests - self._requests, requests
        if self._at_s is None:
            self._at_s = now_s
            self._balance = self._capacity() + self._ratio * came
            return
        passed_s, self._at_s = max(0.0, now_s - self._at_s), max(now_s, self._at_s)
        if passed_s:
            weight = 1.0 - math.exp(-passed_s / WINDOW_S)
            self._rate_per_s += weight * (came / passed_s - self._rate_per_s)
        income = self._ratio * came + self._floor_per_s * passed_s
        self._balance = min(self._capacity(), self._balance + income)

    def _capacity(self) -> float:
        if not self._ratio and not self._floor_per_s:
            return 0.0
        return max(1.0, WINDOW_S * (self._ratio * self._rate_per_s + self._floor_per_s))


FREE: Final = frozenset({FailurePoint.CONNECT, FailurePoint.STOPPING})
"""Failures whose retry costs no budget, because no worker has worked for the request."""


class RetryBudget:
    """The limit on the attempts at one request, and the retry budget that all requests share.

    `refusals` counts retries that were possible but exceeded the budget. `counts` are those of placement.
    """

    __slots__ = ("_bucket", "_counts", "_max_attempts", "_refusals")

    def __init__(self, retries: RetriesConfig | None, refusals: Counter, counts: Counts) -> None:
        retries = retries or RetriesConfig()
        self._bucket = AttemptBudget(retries.budget_ratio, _FLOOR_PER_S if retries.budget_ratio else 0.0)
        self._max_attempts = retries.max_attempts
        self._refusals = refusals
        self._counts = counts

    def exhausted(self, ticket: Ticket, point: FailurePoint) -> bool:
        if point in (FailurePoint.STREAM, FailurePoint.LOCAL) or ticket.attempt >= self._max_attempts:
            return True
        return sent_failures(ticket, point) >= MAX_SENT_FAILURES

    def affords(self, now_s: float) -> bool:
        return self._bucket.affords(self._requests, now_s)

    def pay(self, point: FailurePoint, now_s: float) -> bool:
        """Return whether a retry after a failure at `point` is within the budget, which then pays for it."""
        if point in FREE or self._bucket.take(self._requests, now_s):
            return True
        self._refusals.add()
        return False

    def follow(self, ticket: Ticket, again: Ticket, point: FailurePoint, refusal_s: float | None) -> None:
        """Count a retry, and let it inherit the history of the attempt before."""
        self._counts["retried"] += 1
        again.tried = tried(ticket)
        again.refusal_s = longest(ticket.refusal_s, refusal_s)
        again.sent_failures = sent_failures(ticket, point)

    @property
    def _requests(self) -> int:
        return self._counts["dispatched"] - self._counts["retried"]


def longest(*pauses_s: float | None) -> float | None:
    return max((pause_s for pause_s in pauses_s if pause_s is not None), default=None)


def tried(ticket: Ticket) -> tuple[str, ...]:
    """Return the endpoints that further attempts leave out."""
    return (*ticket.tried, ticket.candidate.endpoint.id)


def sent_failures(ticket: Ticket, point: FailurePoint) -> int:
    """Return the attempts that failed after the request was sent, `ticket` at `point` included."""
    return ticket.sent_failures + (point in (FailurePoint.SENT, FailurePoint.LATE, FailurePoint.ANSWERED))

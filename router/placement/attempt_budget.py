from __future__ import annotations

import math
from typing import Any

WINDOW_S = 30.0
"""The budget holds at most the income of this time. A worker that dies fails all its prefills at once, and each is
worth a retry. At 20 % and four workers these retries take the income of several seconds."""


class AttemptBudget:
    """A bucket that gains `ratio` per request and `floor_per_s` per second, and loses one per retry.

    It is filled when it is read, from the number of requests so far, so that a request costs no time here. It holds
    the income of `WINDOW_S`, but at least one attempt.
    """

    __slots__ = ("_at_s", "_balance", "_floor_per_s", "_rate_per_s", "_ratio", "_requests", "refused", "taken")

    def __init__(self, ratio: float, floor_per_s: float) -> None:
        self._ratio = ratio
        self._floor_per_s = floor_per_s
        self._at_s: float | None = None
        self._requests = 0
        self._rate_per_s = 0.0
        self._balance = 0.0
        self.taken = 0
        self.refused = 0

    def take(self, requests: int, now_s: float) -> bool:
        """Pay for one retry if the budget allows it; `requests` is the total so far."""
        if not self.affords(requests, now_s):
            self.refused += 1
            return False
        self._balance -= 1.0
        self.taken += 1
        return True

    def affords(self, requests: int, now_s: float) -> bool:
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

    def statistics(self) -> dict[str, Any]:
        return {"taken": self.taken, "refused": self.refused, "balance": round(self._balance, 3)}

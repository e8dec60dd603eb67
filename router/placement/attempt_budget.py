"""How many further attempts the fleet is asked to bear.

A sick fleet fails requests; retrying them all would multiply its load by the attempts allowed, just when it can bear
less. So further attempts are paid from a budget that requests fill: a share of each, and a trickle beside. The model
is Finagle's retry budget (a leaky token bucket of `ratio` per request and a reserve per second).
"""

from __future__ import annotations

import math
from typing import Any

WINDOW_S = 30.0
"""How much is saved up at most: what this long a time brings in. A worker that dies fails all its prefills at once, and
they are worth another try: at 20 % and four workers that takes the budget of some seconds."""


class AttemptBudget:
    """A bucket that `ratio` of each request and `floor_per_s` flow into, and one per further attempt out of.

    Filled when it is looked at, from the number of requests so far: a request costs it nothing. It holds what
    `WINDOW_S` of traffic brings in, but at least one attempt.
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
        """Pay for one further attempt, if there is enough; `requests` is how many have come so far, in all."""
        if not self.affords(requests, now_s):
            self.refused += 1
            return False
        self._balance -= 1.0
        self.taken += 1
        return True

    def affords(self, requests: int, now_s: float) -> bool:
        """Whether there is enough for one."""
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
        """Attempts paid for and refused, and how many more there are now."""
        return {"taken": self.taken, "refused": self.refused, "balance": round(self._balance, 3)}

"""One tenant or key with its limits, and how much of them it has used."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from router.config.model import RateLimitsConfig
from router.errors import ErrorKind, RequestError
from router.limits.bucket import Rate, shown_time
from router.limits.table import Entry, RateTable, key_of

BUSY_RETRY_S: Final = 1.0
"""Retry-After of a request above the limit of requests at once: nobody knows when one of them ends."""
LIMITS: Final = ("requests_per_minute", "tokens_per_minute", "max_concurrent_requests")
"""The limits, by the names of their settings."""


class Refusal(NamedTuple):
    """Why an account refuses a request, and how long until the request would pass; infinity for never."""

    wait_s: float
    error: RequestError
    limit: str


class RateAccount:
    """One tenant or key (`name` is ``tenant:NAME``, ``key:NAME`` or ``anybody``) and its use of its limits.

    The levels are in the table, and `requests_left` and `tokens_left` are those of the last check or charge. The
    counters are those of this process.
    """

    __slots__ = (
        "_key", "_slot", "_table", "admitted", "max_running", "name", "refused", "requests", "requests_left", "tokens",
        "tokens_left", "used_tokens",
    )  # fmt: skip

    def __init__(self, name: str, config: RateLimitsConfig, table: RateTable) -> None:
        self.name = name
        self.max_running = config.max_concurrent_requests
        self.requests = _rate(config.requests_per_minute, config.burst_requests)
        self.tokens = _rate(config.tokens_per_minute, config.burst_tokens)
        self.requests_left = 0.0
        self.tokens_left = 0.0
        self.admitted = 0
        self.used_tokens = 0
        self.refused = dict.fromkeys(LIMITS, 0)
        self._key = key_of(name)
        self._slot = -1
        self._table = table

    # while the table is locked

    def check(self, tokens: int, now_s: float) -> Refusal | None:
        """Return why a request of `tokens` may not start now; of several reasons, the one that lasts longest."""
        _, requests, requests_s, left, tokens_s = self._read()
        worst: Refusal | None = None
        rate = self.requests
        if rate is not None:
            level = self.requests_left = rate.level(requests, requests_s, now_s)
            wait_s = rate.wait_s(level, 1)
            if wait_s > 0.0:
                worst = self._above(ErrorKind.REQUESTS_PER_MINUTE, rate, level, 1, wait_s)
        rate = self.tokens
        if rate is not None:
            level = self.tokens_left = rate.level(left, tokens_s, now_s)
            wait_s = rate.wait_s(level, tokens)
            if wait_s > 0.0 and (worst is None or wait_s > worst.wait_s):
                worst = self._above(ErrorKind.TOKENS_PER_MINUTE, rate, level, tokens, wait_s)
        if self.max_running and worst is None and self._table.running(self._slot) >= self.max_running:
            worst = self._busy()
        return worst

    def take(self, tokens: int, now_s: float) -> None:
        """Charge a request that `check` has just allowed."""
        self._change(-1, -tokens, now_s)
        self._table.add_running(self._slot, 1)
        self.admitted += 1

    def settle(self, charged_tokens: int, used_tokens: int, now_s: float, *, served: bool) -> None:
        """Correct the charge of a request that has ended: all of it comes back if no worker has `served` it."""
        if served:
            self._change(0, charged_tokens - used_tokens, now_s)
            self.used_tokens += used_tokens
        else:
            self._change(1, charged_tokens, now_s)
        self._table.add_running(self._slot, -1)

    def statistics(self, now_s: float) -> dict[str, Any]:
        """Return the limits, what is left of them now, and this process's counters."""
        self.check(0, now_s)
        return {
            "account": self.name,
            "running": self._table.running(self._slot),
            "max_concurrent_requests": self.max_running,
            "requests": _shown(self.requests, self.requests_left),
            "tokens": _shown(self.tokens, self.tokens_left),
            "admitted": self.admitted,
            "used_tokens": self.used_tokens,
            "refused": dict(self.refused),
        }

    def _read(self) -> Entry:
        table = self._table
        if self._slot >= 0:
            entry = table.read(self._slot)
            if entry[0] == self._key:
                return entry
        self._slot = table.place(self._key)
        return table.read(self._slot)

    def _change(self, requests: int, tokens: int, now_s: float) -> None:
        _, requests_level, requests_s, tokens_level, tokens_s = self._read()
        rate = self.requests
        if rate is not None:
            level = self.requests_left = min(rate.burst, rate.level(requests_level, requests_s, now_s) + requests)
            self._table.write_requests(self._slot, level, max(now_s, requests_s))
        rate = self.tokens
        if rate is not None:
            level = self.tokens_left = min(rate.burst, rate.level(tokens_level, tokens_s, now_s) + tokens)
            self._table.write_tokens(self._slot, level, max(now_s, tokens_s))

    # what a client sees

    def lines(self) -> tuple[bytes, bytes]:
        """Return the x-ratelimit header lines of requests and of tokens after the last check or charge."""
        return _lines("requests", self.requests, self.requests_left), _lines("tokens", self.tokens, self.tokens_left)

    def _above(self, kind: ErrorKind, rate: Rate, level: float, cost: int, wait_s: float) -> Refusal:
        unit = "requests" if kind is ErrorKind.REQUESTS_PER_MINUTE else "tokens"
        limit = f"limit {rate.per_minute}, left {max(0, math.floor(level))}, requested {cost}"
        if math.isinf(wait_s):
            message = (
                f"The request is too large for {self.name}: {limit} tokens per minute, at most {rate.burst} at once. "
                "Send a shorter prompt or a smaller max_tokens."
            )
            error = RequestError(ErrorKind.REQUEST_ABOVE_TOKEN_LIMIT, message)
        else:
            message = f"Rate limit reached for {self.name} on {unit} per minute: {limit}. "
            error = RequestError(kind, f"{message}Try again in {shown_time(wait_s)}.", retry_after_s=wait_s)
        return Refusal(wait_s, error, f"{unit}_per_minute")

    def _busy(self) -> Refusal:
        message = f"{self.name} has {self.max_running} requests in progress, its limit; try again later."
        error = RequestError(ErrorKind.CONCURRENT_REQUESTS, message, retry_after_s=BUSY_RETRY_S)
        return Refusal(BUSY_RETRY_S, error, "max_concurrent_requests")


def _rate(per_minute: int, burst: int | None) -> Rate | None:
    return Rate(per_minute, per_minute if burst is None else burst) if per_minute else None


def _shown(rate: Rate | None, level: float) -> dict[str, float] | None:
    if rate is None:
        return None
    return {"per_minute": rate.per_minute, "burst": rate.burst, "remaining": level, "full_s": rate.full_s(level)}


def _lines(unit: str, rate: Rate | None, level: float) -> bytes:
    if rate is None:
        return b""
    left = math.floor(level + 1e-6) if level > 0.0 else 0
    text = (
        f"x-ratelimit-limit-{unit}: {rate.per_minute}\r\nx-ratelimit-remaining-{unit}: {left}\r\n"
        f"x-ratelimit-reset-{unit}: {shown_time(rate.full_s(level))}\r\n"
    )
    return text.encode("ascii")

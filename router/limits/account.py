"""One tenant or key with its limits, and how much of them it has used."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from router.config.model import RateLimitsConfig
from router.errors import ErrorKind, RequestError
from router.limits.bucket import Rate, claimed_left, shown_time
from router.limits.table import RateTable, key_of

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

    The levels are in the table, and `requests_left` and `tokens_left` are those of the last call, infinite without a
    limit. The counters are those of this process. Lock the table for every call but `lines`.
    """

    __slots__ = (
        "_at_s", "_config", "_heads", "_key", "_parts", "_placed", "_slot", "_table", "admitted", "max_running", "name",
        "refused", "requests", "requests_left", "tokens", "tokens_left", "used_tokens",
    )  # fmt: skip

    def __init__(self, name: str, config: RateLimitsConfig, table: RateTable) -> None:
        self.name = name
        self._parts = 1.0
        self.adopt(config)
        self.requests_left = self.requests.burst
        self.tokens_left = self.tokens.burst
        self.admitted = 0
        self.used_tokens = 0
        self.refused = dict.fromkeys(LIMITS, 0)
        self._at_s = 0.0
        self._key = key_of(name)
        self._slot = 0
        self._table = table

    @property
    def by_tokens(self) -> bool:
        return self._config.tokens_per_minute > 0

    def adopt(self, config: RateLimitsConfig) -> None:
        """Use other limits from the next check on. What was used stays used."""
        self._config = config
        self._placed = False
        self._divide(self._parts)

    def _divide(self, parts: float) -> None:
        """Use one of `parts` of the limits: 1, unless this host is alone and the setting divides them."""
        config = self._config
        self._parts = parts
        running = config.max_concurrent_requests
        self.max_running = max(1, int(running / parts)) if running else 0
        self.requests = Rate(config.requests_per_minute, config.burst_requests, parts)
        self.tokens = Rate(config.tokens_per_minute, config.burst_tokens, parts)
        self._heads = _head("requests", self.requests), _head("tokens", self.tokens)

    def check(self, tokens: int, now_s: float) -> Refusal | None:
        """Return why a request of `tokens` may not start now; of several reasons, the one that lasts longest."""
        self._fill(now_s)
        if self.requests_left + self.requests.slack < 1 or self.tokens_left + self.tokens.slack < tokens:
            refusal = self._above(tokens)
            if refusal is not None:
                return refusal
        if self.max_running and self._table.running(self._slot) >= self.max_running:
            return self._busy()
        return None

    def take(self, tokens: int) -> None:
        """Charge a request that `check` has just allowed."""
        self.requests_left -= 1.0
        self.tokens_left -= tokens
        self._table.write(self._slot, self.requests_left, self.tokens_left, self._at_s)
        self._table.count(self._slot, 1, 1.0, tokens)
        self.admitted += 1

    def take_more(self, tokens: int, now_s: float) -> bool:
        """Charge tokens to a request in progress. Return whether the debt is now larger than the bucket."""
        self._fill(now_s)
        self.tokens_left -= tokens
        self._table.write(self._slot, self.requests_left, self.tokens_left, self._at_s)
        self._table.count(self._slot, 0, 0.0, tokens)
        return self.tokens_left < -self.tokens.burst

    def settle(self, charged_tokens: int, used_tokens: int, now_s: float, *, served: bool) -> None:
        """Correct the charge of a request that has ended: all of it comes back if no worker has `served` it."""
        self._fill(now_s)
        requests, tokens = 0.0, float(-charged_tokens)
        if served:
            tokens += used_tokens
            self.used_tokens += used_tokens
        else:
            requests = -1.0
        self.requests_left = min(self.requests.burst, self.requests_left - requests)
        self.tokens_left = min(self.tokens.burst, self.tokens_left - tokens)
        self._table.write(self._slot, self.requests_left, self.tokens_left, self._at_s)
        self._table.count(self._slot, -1, requests, tokens)

    def statistics(self, now_s: float) -> dict[str, Any]:
        self._fill(now_s)
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

    def _fill(self, now_s: float) -> None:
        """Read the levels, and let the buckets fill until now. The clock of another process may be a little ahead."""
        table = self._table
        key, requests, tokens, at_s = table.read(self._slot)
        if key != self._key or not self._placed:
            self._place()
            _, requests, tokens, at_s = table.read(self._slot)
        parts = table.parts
        if parts != self._parts:
            self._divide(parts)
        elapsed_s = now_s - at_s
        if elapsed_s > 0.0:
            self._at_s = now_s
        else:
            self._at_s, elapsed_s = at_s, 0.0
        rate = self.requests
        level = requests + elapsed_s * rate.per_s
        self.requests_left = level if level < rate.burst else rate.burst
        rate = self.tokens
        level = tokens + elapsed_s * rate.per_s
        self.tokens_left = level if level < rate.burst else rate.burst

    def _place(self) -> None:
        """Take a slot, and write the rates by which it fills."""
        table = self._table
        self._placed = True
        slot = self._slot = table.place(self._key)
        if not table.rates(slot)[1]:  # only other hosts have used it: what they say is judged here
            _, requests, tokens, at_s = table.read(slot)
            left = claimed_left(requests, self.requests.most), claimed_left(tokens, self.tokens.most)
            table.write(slot, *left, at_s)
        table.set_rates(slot, self.requests.whole + self.tokens.whole)

    # what a client sees

    def lines(self) -> tuple[bytes, bytes]:
        """Return the x-ratelimit header lines of requests and of tokens after the last check or charge."""
        requests, tokens = self._heads
        return (
            _lines(requests, self.requests, self.requests_left) if requests else b"",
            _lines(tokens, self.tokens, self.tokens_left) if tokens else b"",
        )

    def _above(self, tokens: int) -> Refusal | None:
        """Return the refusal by the bucket that takes longer to hold the request; None if both may lend the rest."""
        requests_s = self.requests.wait_s(self.requests_left, 1)
        tokens_s = self.tokens.wait_s(self.tokens_left, tokens)
        if not requests_s and not tokens_s:
            return None
        if requests_s >= tokens_s:
            return self._too_many(ErrorKind.REQUESTS_PER_MINUTE, self.requests, self.requests_left, 1, requests_s)
        return self._too_many(ErrorKind.TOKENS_PER_MINUTE, self.tokens, self.tokens_left, tokens, tokens_s)

    def _too_many(self, kind: ErrorKind, rate: Rate, level: float, cost: int, wait_s: float) -> Refusal:
        unit = "requests" if kind is ErrorKind.REQUESTS_PER_MINUTE else "tokens"
        limit = f"limit {rate.per_minute}, left {max(0, math.floor(level))}, requested {cost}"
        if math.isinf(wait_s):
            message = (
                f"The request is too large for {self.name}: {limit} tokens per minute, at most {rate.most:.0f} at "
                "once. Send a shorter prompt or a smaller max_tokens."
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


def _shown(rate: Rate, level: float) -> dict[str, float] | None:
    if not rate.per_minute:
        return None
    burst = int(rate.burst)
    return {"per_minute": rate.per_minute, "burst": burst, "remaining": level, "full_s": rate.full_s(level)}


def _head(unit: str, rate: Rate) -> tuple[bytes, bytes] | None:
    """Return the header lines of a limit without their two changing values; None without a limit."""
    if not rate.per_minute:
        return None
    first = f"x-ratelimit-limit-{unit}: {rate.per_minute}\r\nx-ratelimit-remaining-{unit}: "
    return first.encode("ascii"), f"\r\nx-ratelimit-reset-{unit}: ".encode("ascii")


def _lines(head: tuple[bytes, bytes], rate: Rate, level: float) -> bytes:
    left = int(level + 1e-6) if level > 0.0 else 0
    return b"%b%d%b%b\r\n" % (head[0], left, head[1], shown_time(rate.full_s(level)).encode("ascii"))

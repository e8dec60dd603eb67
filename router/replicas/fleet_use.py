"""The limits of the fleet: what this replica publishes of their use, and what it takes from its buckets for others."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from router.limits.bucket import Window
from router.limits.host_use import Heard, HostUse, Use
from router.limits.table import Rates
from router.replicas.messages import Used, Uses

WHOLE_S = 1.0
"""All accounts in use are sent after this time, so that a lost message costs no more."""
_SOON_S = 0.1
"""All of them are also sent when a replica is new, at most this often."""
MOST_KEPT = 65_536
"""Accounts of other replicas whose sums are kept. Of further ones, only what is left in the buckets counts."""


@dataclass(slots=True)
class _Sums:
    """What one replica has used of one account since its message `since`, as far as it counts here."""

    since: int
    requests: float
    tokens: float
    requests_window: Window
    tokens_window: Window


@dataclass(slots=True)
class _Other:
    """What is known of one other replica. Sums since its message `first` or later are known from their start."""

    first: int
    sums: dict[int, _Sums] = field(default_factory=dict)
    """By account."""
    running: dict[int, int] = field(default_factory=dict)


class FleetUse:
    """Use out, use in. `divided`: a replica that is alone uses its part of each limit instead of the whole."""

    def __init__(self, host: HostUse, *, divided: bool) -> None:
        self._host = host
        self._divided = divided
        self._parts = 1
        self._since: dict[int, int] = {}
        self._others: dict[str, _Other] = {}
        self._running: dict[int, int] = {}
        self._kept = 0
        self.refused = 0
        """Rows that claim more than their sender can have used. They change nothing."""
        self._whole_s = -math.inf
        self._whole_next = True

    def out(self, now_s: float, seq: int, alone_of: int) -> Uses:
        """Return what the message `seq` carries. `alone_of`: 0, or while alone the number of replicas last seen."""
        self._divide(max(1, alone_of) if self._divided else 1, now_s)
        changed = self._host.changed(now_s)
        elapsed_s = now_s - self._whole_s
        if elapsed_s < (_SOON_S if self._whole_next else WHOLE_S):
            return Uses(False, self._rows(changed, seq))
        self._whole_s, self._whole_next = now_s, False
        in_use = self._host.in_use(now_s)
        for key in self._since.keys() - self._host.accounts:
            del self._since[key]
        return Uses(True, self._rows(changed | in_use, seq))

    def lost(self) -> None:
        """Send all next time, because a message was lost."""
        self._whole_next = True

    def heard(self, replica: str, seq: int, uses: Uses, now_s: float) -> None:
        """Take on the use of another replica, from its message `seq`."""
        other = self._others.get(replica)
        if other is None:
            other = self._others[replica] = _Other(seq)
            self._whole_next = True
        rates = self._host.rates(row.key for row in uses.rows)
        heard = {row.key: self._difference(other, row, seq, rates.get(row.key), now_s) for row in uses.rows}
        running = {row.key: row.running for row in uses.rows}
        if uses.whole:
            running |= dict.fromkeys(other.running.keys() - running.keys(), 0)
        self._host.follow(heard, self._sums(other, running), now_s)

    def left(self, replica: str) -> None:
        """Drop the running requests of a replica that is silent. What it used stays used."""
        other = self._others.pop(replica, None)
        if other is not None:
            sums = self._sums(other, dict.fromkeys(other.running, 0))
            self._kept -= len(other.sums)
            self._host.follow({}, sums, 0.0)

    def _divide(self, parts: int, now_s: float) -> None:
        if parts != self._parts:
            self._parts = parts
            self._host.divide(parts, now_s)

    def _rows(self, uses: dict[int, Use], seq: int) -> list[Used]:
        return [
            Used(
                key,
                self._since.setdefault(key, seq),
                use.used_requests,
                use.used_tokens,
                use.running,
                _finite(use.requests_left),
                _finite(use.tokens_left),
            )
            for key, use in uses.items()
        ]

    def _difference(self, other: _Other, row: Used, seq: int, rates: Rates | None, now_s: float) -> Heard:
        """Return what is new in a row of the message `seq`, as far as its sender can have used it."""
        left = _left(row.requests_left), _left(row.tokens_left)
        sums = other.sums.get(row.key)
        if sums is None and self._kept >= MOST_KEPT:
            other.first = seq + 1
            return Heard(0.0, 0.0, *left, new=True)
        new = sums is None or sums.since != row.since
        if sums is None:
            self._kept += 1
            sums = other.sums[row.key] = _Sums(row.since, 0.0, 0.0, Window(now_s), Window(now_s))
        if new:
            sums.since = row.since
            known = row.since >= other.first
            sums.requests, sums.tokens = (0.0, 0.0) if known else (row.requests, row.tokens)
        requests, tokens = row.requests - sums.requests, row.tokens - sums.tokens
        if rates is None:  # the account judges the level with its first request
            sums.requests, sums.tokens = row.requests, row.tokens
            return Heard(requests, tokens, *left, new=new)
        credit = sums.requests_window.credit(requests, *rates[:2], now_s)
        tokens_credit = sums.tokens_window.credit(tokens, *rates[2:], now_s)
        if credit is None or tokens_credit is None:
            sums.requests, sums.tokens = row.requests, row.tokens
            self.refused += 1
            return Heard(0.0, 0.0, math.inf, math.inf, new=False)
        sums.requests += credit
        sums.tokens += tokens_credit
        return Heard(credit, tokens_credit, *left, new=new)

    def _sums(self, other: _Other, running: dict[int, int]) -> dict[int, int]:
        """Note the running requests of one replica. Return those of all others together, where they have changed."""
        changed: dict[int, int] = {}
        for key, count in running.items():
            if key not in other.sums or count == (before := other.running.pop(key, 0)) == 0:
                continue
            if count:
                other.running[key] = count
            total = self._running.pop(key, 0) + count - before
            if total:
                self._running[key] = total
            changed[key] = total
        return changed


def _finite(level: float) -> float | None:
    return None if math.isinf(level) else level


def _left(level: float | None) -> float:
    return math.inf if level is None else level

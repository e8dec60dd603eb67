"""A shared ledger with delay: several routers see each other's reservations late, and perhaps their own as well."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from router.placement.learning.utilisation import Work
from router.placement.load.shared_load import LoadTotals, ReservedLoad, SharedAccount

_SUMMED = LoadTotals._fields[:6]
"""Fields that are sums over the routers."""


class LateLedger:
    """Router number `router`'s side of the ledgers, a `router.placement.load.shared_load.SharedLedger`.

    `rows` are those of all routers, by candidate. The other routers see a write once it is `delay_s` old. The router
    that wrote it sees it once it is `own_delay_s` old; 0 means at once, as in the real ledger.
    """

    def __init__(
        self,
        rows: dict[str, dict[int, _Row]],
        router: int,
        delay_s: float,
        now: Callable[[], float],
        own_delay_s: float,
    ) -> None:
        self._rows = rows
        self._router = router
        self._delay_s = delay_s
        self._own_delay_s = own_delay_s
        self._now = now

    def other_processes_of(self, accounts: Sequence[SharedAccount | None]) -> NDArray[np.float64]:
        """Return what the other routers have reserved on each account, summed into one row."""
        seen = [LoadTotals() if account is None else account.other_processes() for account in accounts]
        rows = [(*totals[:-1], *(totals.work or (0.0, 0.0, 0.0, 0.0))) for totals in seen]
        return np.array(rows, np.float64).T[np.newaxis]

    def account(self, candidate_id: str) -> LateAccount:
        """Return the candidate's row, emptied."""
        rows = self._rows.setdefault(candidate_id, {})
        if self._router not in rows:
            rows[self._router] = _Row(self._now, self._delay_s)
        late = _Row(self._now, self._own_delay_s) if self._own_delay_s else None
        return LateAccount(rows, self._router, late)


def late_ledgers(routers: int, delay_s: float, now: Callable[[], float], own_delay_s: float = 0.0) -> list[LateLedger]:
    """Return each router's side. Without delay they behave as one host's processes do."""
    rows: dict[str, dict[int, _Row]] = {}
    return [LateLedger(rows, router, delay_s, now, own_delay_s) for router in range(routers)]


class LateAccount:
    """One router's reservations on one worker, and those that it has seen of the others.

    A router adds its own reservations to `others()`. If it must see its own late (`late`), `others()` subtracts the
    reservations that it must not see yet.
    """

    def __init__(self, rows: dict[int, _Row], router: int, late: _Row | None) -> None:
        self._own = rows[router]
        self._rows = rows
        self._late = late
        self._write(LoadTotals())

    def publish(self, account: ReservedLoad) -> None:
        """Note a change of this router's reservations."""
        reserved = (getattr(account, name) for name in LoadTotals._fields[:-1])
        self._write(LoadTotals._make([*reserved, self._own.latest.work]))

    def worked(self, work: Work) -> None:
        self._write(self._own.latest._replace(work=work))

    def _others(self) -> list[_Row]:
        return [row for row in self._rows.values() if row is not self._own]

    def other_processes(self) -> LoadTotals:
        """Return the other routers' reservations that have arrived, less own ones that must not count yet."""
        seen = [row.seen() for row in self._others()]
        work = None
        for row in seen:
            if row.work is not None:
                work = row.work if work is None else work.plus(row.work)
        unseen = LoadTotals()
        if self._late is not None:
            # The caller adds its own reservations, so add the late ones it may see, and subtract the current ones.
            seen.append(self._late.seen())
            unseen = self._own.latest
        sums = [sum(getattr(row, name) for row in seen) - getattr(unseen, name) for name in _SUMMED]
        head_since_s = min((row.head_since_s for row in seen if row.queued_requests), default=0.0)
        freed_s = max((row.freed_s for row in seen), default=0.0)
        return LoadTotals._make([*sums, head_since_s, freed_s, work])

    def handed(self, tokens: float) -> None:
        """Publish what this router has had computed and nobody has read; the others see it at once."""
        self._own.handed_tokens = tokens

    def handed_by_other_processes(self) -> float:
        return sum(row.handed_tokens for row in self._others())

    def close(self) -> None:
        """Clear the row: the candidate has left."""
        self._write(LoadTotals())

    def _write(self, reserved: LoadTotals) -> None:
        self._own.write(reserved)
        if self._late is not None:
            self._late.write(reserved)


class _Row:
    """One router's writes, until every other router has seen them."""

    __slots__ = ("_delay_s", "_now", "_on_its_way", "_seen", "handed_tokens", "latest")

    def __init__(self, now: Callable[[], float], delay_s: float) -> None:
        self.latest = LoadTotals()
        self.handed_tokens = 0.0
        self._seen = self.latest
        self._on_its_way: deque[tuple[float, LoadTotals]] = deque()
        self._now = now
        self._delay_s = delay_s

    def write(self, reserved: LoadTotals) -> None:
        self.latest = reserved
        self._on_its_way.append((self._now() + self._delay_s, reserved))
        self.seen()

    def seen(self) -> LoadTotals:
        way, now_s = self._on_its_way, self._now()
        while way and way[0][0] <= now_s:
            self._seen = way.popleft()[1]
        return self._seen

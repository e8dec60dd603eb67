"""A shared ledger with delay: several routers see each other's reservations late, and perhaps their own as well."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from router.placement.learning.utilisation import Work
from router.placement.load.shared_load import LoadTotals, ReservedLoad, SharedAccount


class LateLedgers:
    """The rows of all routers; `of` returns one router's side. Without delay it behaves as one host's processes do.

    The other routers see a write once it is `delay_s` old. The router that wrote it sees it once it is `own_delay_s`
    old; 0, the default, means at once, as in the real ledger.
    """

    def __init__(self, routers: int, delay_s: float, now: Callable[[], float], own_delay_s: float = 0.0) -> None:
        self._routers = routers
        self._delay_s = delay_s
        self._own_delay_s = own_delay_s
        self._now = now
        self._rows: dict[str, list[_Row]] = {}

    def of(self, router: int) -> LateLedger:
        return LateLedger(self, router)

    def rows(self, candidate_id: str) -> list[_Row]:
        rows = self._rows.get(candidate_id)
        if rows is None:
            rows = self._rows[candidate_id] = [_Row(self._now, self._delay_s) for _ in range(self._routers)]
        return rows

    def late(self) -> _Row | None:
        """Return a row in which a router sees its own reservations late; None if it sees them at once."""
        return _Row(self._now, self._own_delay_s) if self._own_delay_s else None


class LateLedger:
    """One router's side of the ledgers, a `router.placement.load.shared_load.SharedLedger`."""

    def __init__(self, ledgers: LateLedgers, router: int) -> None:
        self._ledgers = ledgers
        self._router = router

    def other_processes_of(self, accounts: Sequence[SharedAccount | None]) -> NDArray[np.float64]:
        """Return what the other routers have reserved on each account, summed into one row."""
        seen = [LoadTotals() if account is None else account.other_processes() for account in accounts]
        rows = [(*totals[:-1], *(totals.work or (0.0, 0.0, 0.0, 0.0))) for totals in seen]
        return np.array(rows, np.float64).T[np.newaxis]

    def account(self, candidate_id: str) -> LateAccount:
        """Return the candidate's row, emptied."""
        rows = self._ledgers.rows(candidate_id)
        others = [row for row in rows if row is not rows[self._router]]
        return LateAccount(rows[self._router], others, self._ledgers.late())


class LateAccount:
    """One router's reservations on one worker, and those that it has seen of the others.

    A router adds its own reservations to `others()`. If it must see its own late (`late`), `others()` subtracts the
    reservations that it must not see yet.
    """

    def __init__(self, own: _Row, others: Sequence[_Row], late: _Row | None = None) -> None:
        self._own = own
        self._others = others
        self._late = late
        self._write(LoadTotals())

    def publish(self, account: ReservedLoad) -> None:
        """Note a change of this router's reservations."""
        self._write(
            LoadTotals(
                account.queued_requests,
                account.queued_tokens,
                account.queued_attention,
                account.running_requests,
                account.kv_tokens,
                account.decode_tokens,
                account.head_since_s,
                account.freed_s,
                self._own.latest.work,
            )
        )

    def worked(self, work: Work) -> None:
        self._write(self._own.latest._replace(work=work))

    def other_processes(self) -> LoadTotals:
        """Return the other routers' reservations that have arrived, less own ones that must not count yet."""
        seen = [row.seen() for row in self._others]
        work = None
        for row in seen:
            if row.work is not None:
                work = row.work if work is None else work.plus(row.work)
        unseen = LoadTotals()
        if self._late is not None:
            # The caller adds its own reservations, so add the late ones it may see, and subtract the current ones.
            seen.append(self._late.seen())
            unseen = self._own.latest
        return LoadTotals(
            sum(row.queued_requests for row in seen) - unseen.queued_requests,
            sum(row.queued_tokens for row in seen) - unseen.queued_tokens,
            sum(row.queued_attention for row in seen) - unseen.queued_attention,
            sum(row.running_requests for row in seen) - unseen.running_requests,
            sum(row.kv_tokens for row in seen) - unseen.kv_tokens,
            sum(row.decode_tokens for row in seen) - unseen.decode_tokens,
            min((row.head_since_s for row in seen if row.queued_requests), default=0.0),
            max((row.freed_s for row in seen), default=0.0),
            work,
        )

    def handed(self, tokens: float) -> None:
        """Publish what this router has had computed and nobody has read; the others see it at once."""
        self._own.handed_tokens = tokens

    def handed_by_other_processes(self) -> float:
        return sum(row.handed_tokens for row in self._others)

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

"""The ledger of the fleet: the rows that this replica publishes, and the sums over the rows of all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from router.placement.learning.utilisation import Work
from router.placement.load.shared_load import LoadTotals
from router.replicas.messages import Row

WHOLE_S = 1.0
"""All rows are sent after this time, so that a lost message costs no more."""
MOST_KEPT = 65_536
"""Rows of other replicas that are kept: 100 replicas with 650 candidates each. Further ones do not count, so that one
message changes sums of a bounded number of rows."""
_SOON = 1e-9
"""Times are positive in the ledger; 0 stands for none."""


class HostRows(Protocol):
    """The ledger that the processes of this host share (`router.process.shared_memory.replica_rows.ReplicaRows`)."""

    def changed(self) -> dict[int, LoadTotals]:
        """Return the sums over this host's processes that have changed since the last call, by candidate."""

    def all(self) -> dict[int, LoadTotals]:
        """Return all of them that are not zero."""

    def write(self, key: int, totals: LoadTotals) -> None:
        """Set what other replicas have reserved on a candidate. It lasts while a process of this host knows it."""


class FleetRows:
    """Rows out, rows in. Times are monotonic seconds of this host."""

    def __init__(self, host: HostRows) -> None:
        self._host = host
        self._others: dict[str, set[int]] = {}
        """The candidates with a row, by replica."""
        self._by_key: dict[int, dict[str, LoadTotals]] = {}
        """The rows by candidate, then by replica."""
        self._kept = 0
        self._whole_s = 0.0

    def out(self, now_s: float) -> tuple[bool, list[Row]]:
        if now_s - self._whole_s >= WHOLE_S:
            self._whole_s = now_s
            self._host.changed()
            return True, [row_of(key, totals, now_s) for key, totals in self._host.all().items()]
        return False, [row_of(key, totals, now_s) for key, totals in self._host.changed().items()]

    def lost(self) -> None:
        """Send all rows next time, because a message was lost."""
        self._whole_s = 0.0

    def heard(self, replica: str, whole: bool, rows: Iterable[Row], now_s: float) -> None:
        fresh = {row.key: totals_of(row, now_s) for row in rows}
        gone = [key for key in self._others.get(replica, ()) if key not in fresh] if whole else []
        for key in gone:
            self._drop(replica, key)
        for key, totals in fresh.items():
            self._keep(replica, key, totals)
        self._write({*fresh, *gone})

    def left(self, replica: str) -> None:
        gone = list(self._others.get(replica, ()))
        for key in gone:
            self._drop(replica, key)
        self._others.pop(replica, None)
        self._write(gone)

    def _keep(self, replica: str, key: int, totals: LoadTotals) -> None:
        rows = self._others.setdefault(replica, set())
        if key not in rows:
            if self._kept >= MOST_KEPT:
                return
            self._kept += 1
            rows.add(key)
        self._by_key.setdefault(key, {})[replica] = totals

    def _drop(self, replica: str, key: int) -> None:
        self._others[replica].remove(key)
        self._kept -= 1
        rows = self._by_key[key]
        del rows[replica]
        if not rows:
            del self._by_key[key]

    def _write(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._host.write(key, summed(self._by_key.get(key, {}).values()))


def summed(rows: Iterable[LoadTotals]) -> LoadTotals:
    """Return the sum over replicas, by the rules of `LoadTotals`. In one pass: it runs for each row that arrives."""
    queued_requests = queued_tokens = running_requests = kv_tokens = decode_tokens = 0
    queued_attention = head_since_s = freed_s = 0.0
    work: Work | None = None
    for row in rows:
        queued, tokens, attention, running, kv, decode, head_s, row_freed_s, row_work = row
        if queued and (not queued_requests or head_s < head_since_s):
            head_since_s = head_s
        queued_requests += queued
        queued_tokens += tokens
        queued_attention += attention
        running_requests += running
        kv_tokens += kv
        decode_tokens += decode
        freed_s = max(freed_s, row_freed_s)
        if row_work is not None:
            work = row_work if work is None else work.plus(row_work)
    return LoadTotals(
        queued_requests,
        queued_tokens,
        queued_attention,
        running_requests,
        kv_tokens,
        decode_tokens,
        head_since_s,
        freed_s,
        work,
    )


def row_of(key: int, totals: LoadTotals, now_s: float) -> Row:
    work = totals.work
    return Row(
        key,
        totals.queued_requests,
        totals.queued_tokens,
        max(0.0, totals.queued_attention),
        totals.running_requests,
        totals.kv_tokens,
        totals.decode_tokens,
        max(0.0, now_s - totals.head_since_s) if totals.queued_requests else None,
        max(0.0, now_s - totals.freed_s) if totals.freed_s else None,
        None
        if work is None
        else (
            max(0.0, work.tokens),
            max(0.0, work.attention),
            max(0.0, now_s - work.at_s),
            max(0.0, now_s - work.since_s),
        ),
    )


def totals_of(row: Row, now_s: float) -> LoadTotals:
    """Return a row that has arrived, in this host's time."""
    work = row.work
    return LoadTotals(
        int(row.queued_requests),
        int(row.queued_tokens),
        row.queued_attention,
        int(row.running_requests),
        int(row.kv_tokens),
        int(row.decode_tokens),
        0.0 if row.head_age_s is None else max(_SOON, now_s - row.head_age_s),
        0.0 if row.freed_age_s is None else max(_SOON, now_s - row.freed_age_s),
        None if work is None else Work(work[0], work[1], max(_SOON, now_s - work[2]), now_s - work[3]),
    )

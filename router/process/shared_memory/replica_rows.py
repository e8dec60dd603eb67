"""The rows of the shared ledger that stand for other replicas: one more row per slot, behind those of the processes."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np

from router.config.model import Config
from router.limits.host_use import HostUse
from router.placement.load.shared_load import LoadTotals
from router.process.shared_memory.ledger import Ledger, make_table, sum_of


def ledger_rows(config: Config, processes: int) -> int:
    """Return the rows per slot that the ledger needs: one per process, and one for all other replicas."""
    return processes + (config.redis.url is not None)


class ReplicaLedger:
    """What a gateway of one process keeps beside other replicas: ledger and limits. The other row is theirs."""

    def __init__(self) -> None:
        self._table = make_table(2)
        self.ledger = Ledger(self._table, 2, 0)
        self._last = Ledger(self._table, 2, 1)
        self.rows = ReplicaRows(self._last)
        self.limits = self.ledger.rate_limits(locked=False)
        self.use = HostUse(self._last.rate_limits(locked=False))

    def close(self) -> None:
        self.ledger.close()
        self._last.close()
        os.close(self._table)


class ReplicaRows:
    """Satisfies `router.replicas.fleet_rows.HostRows`. `ledger` is a view with the number of the last row."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._seen = ledger.earlier_rows()
        self._started = False
        self._slots: dict[int, int] = {}
        self._sums: dict[int, LoadTotals] = {}
        """The sums over this host's processes, by candidate."""
        self._others: dict[int, LoadTotals] = {}

    def changed(self) -> dict[int, LoadTotals]:
        before, self._seen = self._seen, self._ledger.earlier_rows()
        keys, slots, rows = self._seen
        if not (self._started and np.array_equal(before[1], slots) and np.array_equal(before[0], keys)):
            self._started = True
            return self._moved()
        if not (different := np.flatnonzero((before[2] != rows).any(axis=(1, 2)))).size:
            return {}
        return self._summed(different.tolist())

    def all(self) -> dict[int, LoadTotals]:
        """Return all sums that are not zero, as of the last call of `changed`."""
        return {key: totals for key, totals in self._sums.items() if any(totals)}

    def write(self, key: int, totals: LoadTotals) -> None:
        self._others.pop(key, None)
        if any(totals):
            self._others[key] = totals
        if key in self._slots:
            self._ledger.write_own(self._slots[key], self._others.get(key))

    def _moved(self) -> dict[int, LoadTotals]:
        """Candidates have come or gone: fill the rows of those that came, and clear those of the others."""
        keys, slots, _ = self._seen
        before, self._slots = self._slots, dict(zip(keys.tolist(), slots.tolist(), strict=True))
        for slot in set(before.values()).difference(self._slots.values()):
            self._ledger.write_own(slot, None)
        for key, slot in self._slots.items() - before.items():
            self._ledger.write_own(slot, self._others.get(key))
        gone = before.keys() - self._slots.keys()
        for key in gone:
            self._sums.pop(key, None)
        return self._summed(range(len(keys))) | {key: LoadTotals() for key in gone}

    def _summed(self, places: Iterable[int]) -> dict[int, LoadTotals]:
        keys, _, rows = self._seen
        sums = {int(keys[place]): sum_of(rows[place].tobytes()) for place in places}
        self._sums |= sums
        return sums

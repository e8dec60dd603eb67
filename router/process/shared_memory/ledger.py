"""The load that each process has reserved on each worker, in memory that all processes share.

Layout in 8-byte words: one key per slot; one row per process with its connections; for each slot one row per process,
side by side, with the load reserved on that candidate; then `pins`, `deaths` and
`rate_limits`. Each row has one writer. Each word is written as a whole, but for less than a microsecond a reader may
see a part of a change. That is accepted, because the values are sums over many requests. All values of rows are
doubles, which are exact for counts up to 2**53.

The slot of a candidate is chosen under a file lock, once per process. After that a reservation is a write to memory
without a system call.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from policies.view import WorkerId
from router.limits.table import RateTable, table_bytes
from router.placement.learning.utilisation import Work
from router.placement.load.shared_load import LoadTotals, ReservedLoad, SharedAccount
from router.process.shared_memory.deaths import DEATHS_BYTES, SharedDeaths
from router.process.shared_memory.pins import PINS_BYTES, ResponsePins
from router.process.shared_memory.rate_limits import RateLock

log = logging.getLogger("warmroute.process")

SLOTS = 4_096
"""Number of candidates with a row. A slot is reused once all processes have released it."""
_WORD = 8
_LOAD_FIELDS = 9
_WORK_FIELDS = 4
_FIELDS = _LOAD_FIELDS + _WORK_FIELDS
_ROW_BYTES = _FIELDS * _WORD
_ACCEPT_FIELDS = 3
_KEY = struct.Struct("@Q")
_ACCEPT = struct.Struct(f"@{_ACCEPT_FIELDS}d")
_LOAD = struct.Struct(f"@{_LOAD_FIELDS}d")
_WORK = struct.Struct(f"@{_WORK_FIELDS}d")
_NOTHING = LoadTotals()
_TESTS_AT = 1 << 40
"""Offset of file locks that stand for workers, far behind the end of the table."""


class AcceptCounters(NamedTuple):
    """Whether a process accepts connections, its open connections, and the connections that it has accepted so far."""

    serving: bool
    connections: int
    taken: int


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Offsets in the table, in bytes."""

    processes: int

    @property
    def bytes(self) -> int:
        return self.limits + table_bytes(self.processes)

    @property
    def limits(self) -> int:
        return self.deaths + DEATHS_BYTES

    @property
    def pins(self) -> int:
        """Offset of the table of stored responses."""
        return self.row(SLOTS, 0)

    @property
    def deaths(self) -> int:
        return self.pins + PINS_BYTES

    def key(self, slot: int) -> int:
        """Return the offset of a slot's key. A key of 0 means that the slot is free."""
        return slot * _WORD

    def accept_counters(self, process: int) -> int:
        """Return the offset of a process's connections."""
        return SLOTS * _WORD + process * _ACCEPT.size

    def row(self, slot: int, process: int) -> int:
        """Return the offset of the load that a process has reserved on a slot's candidate."""
        return self.accept_counters(self.processes) + (slot * self.processes + process) * _ROW_BYTES


def make_table(processes: int) -> int:
    """Return the file descriptor of an empty table, for children to inherit."""
    table = os.memfd_create("warmroute-ledger") if sys.platform == "linux" else _unnamed_file()
    os.ftruncate(table, TableLayout(processes).bytes)
    return table


def _unnamed_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Ledger:
    """One process's view of the table. The process writes its own rows and reads all rows. Satisfies `SharedLedger`.

    The system allocates a page of the table when it is first written.
    """

    def __init__(self, table: int, processes: int, process: int) -> None:
        self._table = table
        self._layout = TableLayout(processes)
        self._process = process
        self._memory = mmap.mmap(table, self._layout.bytes)
        self._rows: dict[int, LedgerRow] = {}
        self._full = False
        self._asked: tuple[Sequence[SharedAccount | None], NDArray[np.int64]] | None = None
        """The accounts of the last call of `other_processes_of`, and their slots; -1 for an account that is None."""

    def account(self, candidate_id: str) -> LedgerRow | None:
        """Return the candidate's row, cleared, or None if all slots are taken. The log reports that once."""
        with self._locked():
            slot = self._slot(xxhash.xxh3_64_intdigest(candidate_id.encode()) or 1)
            if slot is None:
                self._no_room()
                return None
            before = self._rows.get(slot)
            if before is not None:
                before.close()
            row = self._rows[slot] = LedgerRow(self._memory, self._layout, slot, self._process)
        return row

    def other_processes_of(self, accounts: Sequence[SharedAccount | None]) -> NDArray[np.float64]:
        """Return the rows of the other processes for these accounts (`SharedLedger.other_processes_of`)."""
        if self._asked is None or self._asked[0] is not accounts:
            found = [row.slot if isinstance(row, LedgerRow) else -1 for row in accounts]
            self._asked = accounts, np.array(found, np.int64)
        slots = self._asked[1]
        rows = self._all_rows()[slots].transpose(1, 2, 0)
        others = np.delete(rows, self._process, axis=0)[:, 1 : _LOAD_FIELDS + _WORK_FIELDS]
        others[:, :, slots < 0] = 0.0
        return others

    def earlier_rows(self) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.float64]]:
        """Return keys, slots and the rows of the processes before this one, for all candidates that one of these
        knows."""
        keys = np.frombuffer(self._memory, np.uint64, SLOTS, 0)
        slots = np.flatnonzero(keys)
        rows = self._all_rows()[slots, : self._process]
        known = rows[:, :, 0].any(axis=1)
        if not known.all():
            slots, rows = slots[known], rows[known]
        return keys[slots], slots, rows

    def write_own(self, slot: int, totals: LoadTotals | None) -> None:
        """Set this process's row of a slot that others know; None clears it."""
        at = self._layout.row(slot, self._process)
        row = bytes(_ROW_BYTES)
        if totals is not None:
            load = _LOAD.pack(1.0, *totals[: _LOAD_FIELDS - 1])
            row = load + _WORK.pack(*(totals.work or (0.0,) * _WORK_FIELDS))
        self._memory[at : at + _ROW_BYTES] = row

    def _all_rows(self) -> NDArray[np.float64]:
        """Return the rows of all slots. An array over the memory prevents its end, so drop it with the call."""
        processes = self._layout.processes
        table = np.frombuffer(self._memory, np.float64, SLOTS * processes * _FIELDS, self._layout.row(0, 0))
        return table.reshape(SLOTS, processes, _FIELDS)

    def accept_counters(self, process: int) -> AcceptCounters:
        serving, connections, taken = _ACCEPT.unpack_from(self._memory, self._layout.accept_counters(process))
        return AcceptCounters(bool(serving), int(connections), int(taken))

    def write_accept_counters(self, accept_counters: AcceptCounters) -> None:
        """Publish this process's connections."""
        _ACCEPT.pack_into(self._memory, self._layout.accept_counters(self._process), *accept_counters)

    def clear(self, process: int) -> None:
        """Clear the load, the connections and the counts of running requests of a process that has died."""
        self._memory[self._layout.accept_counters(process) : self._layout.accept_counters(process + 1)] = bytes(
            _ACCEPT.size
        )
        for slot in self._used():
            at = self._layout.row(slot, process)
            self._memory[at : at + _ROW_BYTES] = bytes(_ROW_BYTES)
        self.rate_limits().clear(process)

    def pins(self, workers: Callable[[], Iterable[WorkerId]]) -> ResponsePins:
        """Return the table of stored responses on `workers`."""
        return ResponsePins(self._memory, self._layout.pins, workers)

    def deaths(self) -> SharedDeaths:
        return SharedDeaths(self._memory, self._layout.deaths, self._locked)

    def rate_limits(self, *, locked: bool = True) -> RateTable:
        """Return the buckets and counts of all limits. `locked`: other processes share them."""
        lock, layout = RateLock(self._table) if locked else None, self._layout
        return RateTable(self._memory, layout.limits, processes=layout.processes, process=self._process, lock=lock)

    @contextmanager
    def alone(self, worker: str) -> Iterator[bool]:
        """Lock `worker` against other processes and yield True, or yield False if another process has it.

        The system releases the lock of a process that dies.
        """
        place = _TESTS_AT + xxhash.xxh32_intdigest(worker.encode())
        try:
            fcntl.lockf(self._table, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.lockf(self._table, fcntl.LOCK_UN, 1, place)

    def close(self) -> None:
        """Unmap the memory. Other processes keep theirs."""
        self._memory.close()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._table, fcntl.LOCK_EX, 1, 0)
        try:
            yield
        finally:
            fcntl.lockf(self._table, fcntl.LOCK_UN, 1, 0)

    def _slot(self, key: int) -> int | None:
        """Return the slot of `key`: its present slot, a slot that was never used, or a slot that all processes have
        released.
        """
        keys = self._keys()
        if key in keys:
            return keys.index(key)
        slot = keys.index(0) if 0 in keys else self._abandoned()
        if slot is not None:
            _KEY.pack_into(self._memory, self._layout.key(slot), key)
        return slot

    def _keys(self) -> tuple[int, ...]:
        return struct.unpack_from(f"@{SLOTS}Q", self._memory, 0)

    def _used(self) -> Iterator[int]:
        for slot, key in enumerate(self._keys()):
            if key:
                yield slot

    def _abandoned(self) -> int | None:
        """Return the first slot whose rows are all zero, which means that every process has released it."""
        size = self._layout.processes * _ROW_BYTES
        for slot in range(SLOTS):
            at = self._layout.row(slot, 0)
            if not any(self._memory[at : at + size]):
                return slot
        return None

    def _no_room(self) -> None:
        if not self._full:
            self._full = True
            log.warning("shared ledger full: further workers' load is seen by each process alone", extra={"of": SLOTS})


class LedgerRow:
    """The load that one process has reserved on one candidate, and the sum of the others. Satisfies `SharedAccount`.

    The first word of a row is 1 while its process knows the candidate.
    """

    def __init__(self, memory: mmap.mmap, layout: TableLayout, slot: int, process: int) -> None:
        self.slot = slot
        self._memory = memory
        self._at = layout.row(slot, process)
        self._work_at = self._at + _LOAD.size
        self._all_at = layout.row(slot, 0)
        self._all_end = layout.row(slot + 1, 0)
        self._others = [process_ for process_ in range(layout.processes) if process_ != process]
        self._seen = b""
        self._sum = _NOTHING
        self._open = True
        load = _LOAD.pack(1.0, *[0.0] * (_LOAD_FIELDS - 1))
        memory[self._at : self._at + _ROW_BYTES] = load + bytes(_ROW_BYTES - _LOAD.size)

    def publish(self, account: ReservedLoad) -> None:
        if self._open:
            _LOAD.pack_into(
                self._memory,
                self._at,
                1.0,
                account.queued_requests,
                account.queued_tokens,
                account.queued_attention,
                account.running_requests,
                account.kv_tokens,
                account.decode_tokens,
                account.head_since_s,
                account.freed_s,
            )

    def worked(self, work: Work) -> None:
        """Publish the prefill work that this process has dispatched."""
        if self._open:
            _WORK.pack_into(self._memory, self._work_at, *work)

    def other_processes(self) -> LoadTotals:
        """Return the sum of the other rows, cached until one of them changes."""
        seen = self._memory[self._all_at : self._all_end]
        if seen != self._seen:
            self._seen = seen
            self._sum = _sum(seen, self._others)
        return self._sum

    def close(self) -> None:
        """Clear the row, because the candidate has left."""
        if self._open:
            self._open = False
            self._memory[self._at : self._at + _ROW_BYTES] = bytes(_ROW_BYTES)


def sum_of(rows: bytes) -> LoadTotals:
    return _sum(rows, list(range(len(rows) // _ROW_BYTES)))


def _sum(rows: bytes, processes: list[int]) -> LoadTotals:
    reserved = [_LOAD.unpack_from(rows, process * _ROW_BYTES) for process in processes]
    works = [Work(*_WORK.unpack_from(rows, process * _ROW_BYTES + _LOAD.size)) for process in processes]
    _, queued, tokens, attention, running, kv_tokens, decode_tokens, _, freed_s = zip(*reserved, strict=True)
    work = None
    for one in works:
        if one.at_s:
            work = one if work is None else work.plus(one)
    return LoadTotals(
        int(sum(queued)),
        int(sum(tokens)),
        sum(attention),
        int(sum(running)),
        int(sum(kv_tokens)),
        int(sum(decode_tokens)),
        min((row[7] for row in reserved if row[1]), default=0.0),
        max(freed_s),
        work,
    )

"""The ledger in memory that all processes of one gateway share.

Layout, in 8-byte words: a key per slot; a row per process for its connections; for each slot one row per process, next
to each other, with what that process has booked on the slot's candidate; then the `pins`, and the `deaths`. A row has
one writer.
Its words are written one by one and each of them whole, so a reader may see half a change for less than a microsecond,
and takes it: the figures are sums of many requests. All are doubles, which hold counts exactly up to 2**53.

Which slot a candidate has is settled under a file lock, once in each process's life: from then on a booking is a write
to memory and no system call.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

from policies.view import WorkerId
from router.placement.prefill_estimate import Work
from router.placement.shared_load import OthersLoad, OwnLoad
from router.process.shared_memory.deaths import DEATHS_BYTES, SharedDeaths
from router.process.shared_memory.pins import PINS_BYTES, ResponsePins

log = logging.getLogger("warmroute.process")

SLOTS = 4_096
"""Candidates that can have a row; a slot is free again once all processes have let go of it."""
_WORD = 8
_BOOKED_FIELDS = 9
_WORK_FIELDS = 4
_FIELDS = _BOOKED_FIELDS + _WORK_FIELDS
_ROW_BYTES = _FIELDS * _WORD
_ACCEPT_FIELDS = 3
_KEY = struct.Struct("@Q")
_ACCEPT = struct.Struct(f"@{_ACCEPT_FIELDS}d")
_BOOKED = struct.Struct(f"@{_BOOKED_FIELDS}d")
_WORK = struct.Struct(f"@{_WORK_FIELDS}d")
_NOTHING = OthersLoad(0, 0, 0.0, 0, 0, 0, 0.0, 0.0, None)
_TESTS_AT = 1 << 40
"""Locks on bytes from here on, far behind the table's end, stand for a worker each."""


class AcceptCounters(NamedTuple):
    """Whether a process takes client connections, how many it has open, and how many it ever took."""

    serving: bool
    connections: int
    taken: int


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Where things lie in a table for so many processes."""

    processes: int

    @property
    def bytes(self) -> int:
        """Size of the table."""
        return self.deaths + DEATHS_BYTES

    @property
    def pins(self) -> int:
        """Offset of the table of stored responses."""
        return self.row(SLOTS, 0)

    @property
    def deaths(self) -> int:
        """Offset of the table of deaths."""
        return self.pins + PINS_BYTES

    def key(self, slot: int) -> int:
        """Offset of a slot's key; 0 there means free."""
        return slot * _WORD

    def accept_counters(self, process: int) -> int:
        """Offset of a process's connections."""
        return SLOTS * _WORD + process * _ACCEPT.size

    def row(self, slot: int, process: int) -> int:
        """Offset of what a process has booked on a slot's candidate."""
        return self.accept_counters(self.processes) + (slot * self.processes + process) * _ROW_BYTES


def make_table(processes: int) -> int:
    """Memory for an empty ledger, as a file descriptor to hand down."""
    table = os.memfd_create("warmroute-ledger") if sys.platform == "linux" else _unnamed_file()
    os.ftruncate(table, TableLayout(processes).bytes)
    return table


def _unnamed_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Ledger:
    """One process's side of the table: writes its own rows, reads all. Satisfies `SharedLedger`.

    The table's pages are only taken up once they are written.
    """

    def __init__(self, table: int, processes: int, process: int) -> None:
        self._table = table
        self._layout = TableLayout(processes)
        self._process = process
        self._memory = mmap.mmap(table, self._layout.bytes)
        self._rows: dict[int, LedgerRow] = {}
        self._full = False

    def account(self, candidate_id: str) -> LedgerRow | None:
        """The candidate's row, emptied. None, and said once in the log: more candidates than slots."""
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

    def accept_counters(self, process: int) -> AcceptCounters:
        """The connections of one process."""
        serving, connections, taken = _ACCEPT.unpack_from(self._memory, self._layout.accept_counters(process))
        return AcceptCounters(bool(serving), int(connections), int(taken))

    def write_accept_counters(self, accept_counters: AcceptCounters) -> None:
        """Our own connections have changed."""
        _ACCEPT.pack_into(self._memory, self._layout.accept_counters(self._process), *accept_counters)

    def clear(self, process: int) -> None:
        """`process` has died: nothing is booked or open there."""
        self._memory[self._layout.accept_counters(process) : self._layout.accept_counters(process + 1)] = bytes(
            _ACCEPT.size
        )
        for slot in self._used():
            at = self._layout.row(slot, process)
            self._memory[at : at + _ROW_BYTES] = bytes(_ROW_BYTES)

    def pins(self, workers: Callable[[], Iterable[WorkerId]]) -> ResponsePins:
        """Which of `workers` made which stored response."""
        return ResponsePins(self._memory, self._layout.pins, workers)

    def deaths(self) -> SharedDeaths:
        """Workers' deaths by the bodies they are blamed on, counted by all processes together."""
        return SharedDeaths(self._memory, self._layout.deaths, self._locked)

    @contextmanager
    def alone(self, worker: str) -> Iterator[bool]:
        """Whether no other process is in such a block for `worker` now. The system ends it for a process that dies."""
        handover_state = _TESTS_AT + xxhash.xxh32_intdigest(worker.encode())
        try:
            fcntl.lockf(self._table, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, handover_state)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.lockf(self._table, fcntl.LOCK_UN, 1, handover_state)

    def close(self) -> None:
        """Give the memory back. Others keep theirs."""
        self._memory.close()

    def statistics(self) -> dict[str, int]:
        """Slots in use, of how many."""
        return {"slots_used": sum(1 for _ in self._used()), "slots": SLOTS}

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._table, fcntl.LOCK_EX, 1, 0)
        try:
            yield
        finally:
            fcntl.lockf(self._table, fcntl.LOCK_UN, 1, 0)

    def _slot(self, key: int) -> int | None:
        """The slot of `key`: its own, the first that was never used, or one that everybody has left."""
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
    """What one process has booked on one candidate, and what the others have. Satisfies `SharedAccount`.

    The first word of a row is 1 while its process knows the candidate.
    """

    def __init__(self, memory: mmap.mmap, layout: TableLayout, slot: int, process: int) -> None:
        self._memory = memory
        self._at = layout.row(slot, process)
        self._work_at = self._at + _BOOKED.size
        self._all_at = layout.row(slot, 0)
        self._all_end = layout.row(slot + 1, 0)
        self._others = [process_ for process_ in range(layout.processes) if process_ != process]
        self._seen = b""
        self._sum = _NOTHING
        self._open = True
        memory[self._at : self._at + _ROW_BYTES] = _BOOKED.pack(1.0, *[0.0] * (_BOOKED_FIELDS - 1)) + bytes(_WORK.size)

    def publish(self, account: OwnLoad) -> None:
        """What this process has booked has changed."""
        if self._open:
            _BOOKED.pack_into(
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
        """This process has dispatched another prefill."""
        if self._open:
            _WORK.pack_into(self._memory, self._work_at, *work)

    def others(self) -> OthersLoad:
        """The sum of the other rows, kept until one of them changes."""
        seen = self._memory[self._all_at : self._all_end]
        if seen != self._seen:
            self._seen = seen
            self._sum = _sum(seen, self._others)
        return self._sum

    def close(self) -> None:
        """The candidate has left."""
        if self._open:
            self._open = False
            self._memory[self._at : self._at + _ROW_BYTES] = bytes(_ROW_BYTES)


def _sum(rows: bytes, processes: list[int]) -> OthersLoad:
    reserved = [_BOOKED.unpack_from(rows, process * _ROW_BYTES) for process in processes]
    works = [Work(*_WORK.unpack_from(rows, process * _ROW_BYTES + _BOOKED.size)) for process in processes]
    _, queued, tokens, attention, running, kv_tokens, decode_tokens, _, freed_s = zip(*reserved, strict=True)
    work = None
    for one in works:
        if one.at_s:
            work = one if work is None else work.plus(one)
    return OthersLoad(
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

"""The buckets and the counts of all accounts, in one block of memory that several processes may share.

Layout in 8-byte words: the number of parts into which limits are divided now (0 stands for 1); for each slot the
account's key, the levels of its request bucket and of its token bucket, and the time of both; for each slot what this
host has used, and the rates of both buckets; then for each slot one count of running requests per process. A count has
one writer, its own process. Levels and use change while the lock is held, because each process reads and writes them. A
bucket that was never used has an infinite level, which its size bounds.

A slot is found by the account's key and is never free again. If all slots are taken, an account takes over the slot
that was used least recently and has no running request: a bucket that nobody uses for long is full, and then says
nothing. `host_use` passes on what other hosts use.
"""

from __future__ import annotations

import math
import mmap
import struct
from typing import Protocol, TypeAlias

import xxhash

SLOTS = 4_096
"""Accounts whose buckets are kept at a time."""
_ENTRY = struct.Struct("@Q3d")
_KEY = struct.Struct("@Q")
_LEVELS = struct.Struct("@3d")
_ENTRY_BYTES = _ENTRY.size
_KEY_BYTES = _KEY.size
_USE = struct.Struct("@2d")
_RATES = struct.Struct("@4d")
_USE_BYTES = _USE.size + _RATES.size
_COUNT = struct.Struct("@q")
_PARTS = struct.Struct("@d")
_NEW = bytes(_USE_BYTES)

Memory: TypeAlias = bytearray | mmap.mmap
Entry: TypeAlias = tuple[int, float, float, float]
"""An account's key, the levels of its request bucket and of its token bucket, and the time of both."""


Rates: TypeAlias = tuple[float, float, float, float]
"""Units per second and size of the request bucket, then of the token bucket. No limit: 0 and infinity."""


class Lock(Protocol):
    """Keeps other processes from changing levels."""

    def acquire(self) -> None:
        """Wait for the lock, for a short time at most."""

    def release(self) -> None:
        """Let the others go on."""


def table_bytes(processes: int) -> int:
    """Return the size of a table for `processes`."""
    return _PARTS.size + SLOTS * (_ENTRY.size + _USE_BYTES + processes * _COUNT.size)


class RateTable:
    """One process's view of the table at offset `at` of `memory`."""

    def __init__(
        self, memory: Memory, at: int = 0, *, processes: int = 1, process: int = 0, lock: Lock | None = None
    ) -> None:
        self.memory = memory
        self.process = process
        self.processes = processes
        self._parts_at = at
        self.entries_at = at + _PARTS.size
        self.use_at = self.entries_at + SLOTS * _ENTRY.size
        self.counts_at = self.use_at + SLOTS * _USE_BYTES
        self._row = struct.Struct(f"@{processes}q")
        self._row_bytes = self._row.size
        self._own_at = self.counts_at + process * _COUNT.size
        self._lock = lock

    def __enter__(self) -> None:
        """Take the lock, if other processes share the table."""
        if self._lock is not None:
            self._lock.acquire()

    def __exit__(self, *failure: object) -> None:
        if self._lock is not None:
            self._lock.release()

    def place(self, key: int) -> int:
        """Return the slot of `key`, and take one for it if it has none. Hold the lock."""
        slot = key % SLOTS
        for _ in range(SLOTS):
            found = _KEY.unpack_from(self.memory, self.entries_at + slot * _ENTRY_BYTES)[0]
            if found == key:
                return slot
            if found == 0:
                break
            slot = (slot + 1) % SLOTS
        else:
            slot = self._least_used()
        _ENTRY.pack_into(self.memory, self.entries_at + slot * _ENTRY_BYTES, key, math.inf, math.inf, 0.0)
        place = self.use_at + slot * _USE_BYTES
        self.memory[place : place + _USE_BYTES] = _NEW
        return slot

    def read(self, slot: int) -> Entry:
        """Return the entry of a slot. Compare its key: the slot may have a new owner."""
        entry: Entry = _ENTRY.unpack_from(self.memory, self.entries_at + slot * _ENTRY_BYTES)
        return entry

    def write(self, slot: int, requests: float, tokens: float, at_s: float) -> None:
        """Set both levels and their time. Hold the lock."""
        _LEVELS.pack_into(self.memory, self.entries_at + slot * _ENTRY_BYTES + _KEY_BYTES, requests, tokens, at_s)

    def count(self, slot: int, running: int, requests: float, tokens: float) -> None:
        """Add to this process's count of running requests, and to what this host has used. Hold the lock."""
        memory = self.memory
        place = self._own_at + slot * self._row_bytes
        _COUNT.pack_into(memory, place, _COUNT.unpack_from(memory, place)[0] + running)
        place = self.use_at + slot * _USE_BYTES
        used_requests, used_tokens = _USE.unpack_from(memory, place)
        _USE.pack_into(memory, place, used_requests + requests, used_tokens + tokens)

    def rates(self, slot: int) -> Rates:
        """Return the undivided rates of a slot, all zero if no account of this host has used it."""
        rates: Rates = _RATES.unpack_from(self.memory, self.use_at + slot * _USE_BYTES + _USE.size)
        return rates

    def set_rates(self, slot: int, rates: Rates) -> None:
        """Set the undivided rates of a slot. Hold the lock."""
        _RATES.pack_into(self.memory, self.use_at + slot * _USE_BYTES + _USE.size, *rates)

    @property
    def parts(self) -> float:
        """The number of parts of which this host has one. Hold the lock."""
        parts: float = _PARTS.unpack_from(self.memory, self._parts_at)[0]
        return parts or 1.0

    def divide(self, parts: float) -> None:
        """Set the number of parts. Hold the lock."""
        _PARTS.pack_into(self.memory, self._parts_at, parts)

    def running(self, slot: int) -> int:
        """Return the running requests of a slot's account in all processes."""
        counts = self._row.unpack_from(self.memory, self.counts_at + slot * self._row.size)
        return counts[0] if len(counts) == 1 else sum(counts)

    def set_running(self, slot: int, running: int) -> None:
        _COUNT.pack_into(self.memory, self._own_at + slot * self._row_bytes, running)

    def clear(self, process: int) -> None:
        """Clear the counts of a process that has ended. What its requests were charged stays."""
        for slot in range(SLOTS):
            _COUNT.pack_into(self.memory, self.counts_at + slot * self._row.size + process * _COUNT.size, 0)

    def _least_used(self) -> int:
        idle = [slot for slot in range(SLOTS) if not self.running(slot)]
        return min(idle or range(SLOTS), key=self._used_s)

    def _used_s(self, slot: int) -> float:
        return self.read(slot)[3]


def local_table() -> RateTable:
    return RateTable(bytearray(table_bytes(1)))


def key_of(name: str) -> int:
    """Return the key of an account by its name; never 0, which stands for a free slot."""
    return xxhash.xxh3_64_intdigest(name.encode()) or 1

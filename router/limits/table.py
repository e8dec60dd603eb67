"""The buckets and the counts of all accounts, in one block of memory that several processes may share.

Layout in 8-byte words: for each slot the account's key, the level of its request bucket, the time of that level, and
both of its token bucket; then for each slot one count of running requests per process. A count has one writer, its own
process. A level changes while `lock` is held, because each process reads and writes it.

Levels and times are absolute, so that a store on another host can hold the same values by name. A slot is found by the
account's key and is never free again. If all slots are taken, an account takes over the slot that was used least
recently and has no running request: a bucket that nobody uses for long is full, and then says nothing.
"""

from __future__ import annotations

import mmap
import struct
from typing import Protocol, TypeAlias

import xxhash

SLOTS = 4_096
"""Accounts whose buckets are kept at a time."""
_ENTRY = struct.Struct("@Q4d")
_KEY = struct.Struct("@Q")
_TOKENS_AT = struct.Struct("@Q2d").size
_BUCKET = struct.Struct("@2d")
_REQUESTS_AT = _KEY.size
_COUNT = struct.Struct("@q")

Memory: TypeAlias = bytearray | mmap.mmap
Entry: TypeAlias = tuple[int, float, float, float, float]
"""An account's key, the level of its request bucket, the time of that level, and both of its token bucket."""


class Lock(Protocol):
    """Keeps other processes from changing levels."""

    def acquire(self) -> None:
        """Wait for the lock, for a short time at most."""
        ...

    def release(self) -> None:
        """Let the others go on."""
        ...


class NoLock:
    """The lock of a process that shares its table with no other."""

    def acquire(self) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""


def table_bytes(processes: int) -> int:
    """Return the size of a table for `processes`."""
    return SLOTS * (_ENTRY.size + processes * _COUNT.size)


class RateTable:
    """One process's view of the table at offset `at` of `memory`."""

    def __init__(
        self, memory: Memory, at: int = 0, *, processes: int = 1, process: int = 0, lock: Lock | None = None
    ) -> None:
        self._memory = memory
        self._at = at
        self._counts_at = at + SLOTS * _ENTRY.size
        self._row = struct.Struct(f"@{processes}q")
        self._process = process
        self.lock: Lock = lock if lock is not None else NoLock()

    def place(self, key: int) -> int:
        """Return the slot of `key`, and take one for it if it has none. Hold the lock."""
        slot = key % SLOTS
        for _ in range(SLOTS):
            found = _KEY.unpack_from(self._memory, self._at + slot * _ENTRY.size)[0]
            if found == key:
                return slot
            if found == 0:
                break
            slot = (slot + 1) % SLOTS
        else:
            slot = self._least_used()
        _ENTRY.pack_into(self._memory, self._at + slot * _ENTRY.size, key, 0.0, 0.0, 0.0, 0.0)
        return slot

    def read(self, slot: int) -> Entry:
        """Return the entry of a slot. Compare its key: the slot may have a new owner."""
        entry: Entry = _ENTRY.unpack_from(self._memory, self._at + slot * _ENTRY.size)
        return entry

    def write_requests(self, slot: int, level: float, at_s: float) -> None:
        """Set the level of the request bucket. Hold the lock."""
        _BUCKET.pack_into(self._memory, self._at + slot * _ENTRY.size + _REQUESTS_AT, level, at_s)

    def write_tokens(self, slot: int, level: float, at_s: float) -> None:
        """Set the level of the token bucket. Hold the lock."""
        _BUCKET.pack_into(self._memory, self._at + slot * _ENTRY.size + _TOKENS_AT, level, at_s)

    def running(self, slot: int) -> int:
        """Return the running requests of a slot's account in all processes."""
        return sum(self._row.unpack_from(self._memory, self._counts_at + slot * self._row.size))

    def add_running(self, slot: int, change: int) -> None:
        """Change the count of this process."""
        place = self._counts_at + slot * self._row.size + self._process * _COUNT.size
        _COUNT.pack_into(self._memory, place, _COUNT.unpack_from(self._memory, place)[0] + change)

    def clear(self, process: int) -> None:
        """Clear the counts of a process that has ended. What its requests were charged stays."""
        for slot in range(SLOTS):
            _COUNT.pack_into(self._memory, self._counts_at + slot * self._row.size + process * _COUNT.size, 0)

    def _least_used(self) -> int:
        idle = [slot for slot in range(SLOTS) if not self.running(slot)]
        return min(idle or range(SLOTS), key=self._used_s)

    def _used_s(self, slot: int) -> float:
        _, _, requests_s, _, tokens_s = self.read(slot)
        return max(requests_s, tokens_s)


def local_table() -> RateTable:
    """Return a table of this process alone."""
    return RateTable(bytearray(table_bytes(1)))


def key_of(name: str) -> int:
    """Return the key of an account by its name; never 0, which stands for a free slot."""
    return xxhash.xxh3_64_intdigest(name.encode()) or 1

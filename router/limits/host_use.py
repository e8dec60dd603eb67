"""What the processes of this host have used of their limits, and what other hosts have used of them.

A host's bucket stands for the bucket of all hosts: each takes from it what the others have used. Amounts used are sums,
so that a reader who missed one takes the difference with the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from router.limits.bucket import claimed_left
from router.limits.table import SLOTS, Rates, RateTable

_ENTRY_FIELDS = 4
_USE_FIELDS = 6
_MOST_PLACED = SLOTS - SLOTS // 8
"""Accounts that only other hosts use get a slot while the table has fewer: slots are then found in a few steps."""
_FULL = 1.0 - 1e-6


class Use(NamedTuple):
    """What this host has used of one account since it has a slot, and what is left of both buckets: infinity without a
    limit."""

    used_requests: float
    used_tokens: float
    running: int
    requests_left: float
    tokens_left: float


class Heard(NamedTuple):
    """What another host says of one account: its use since it was last heard, and what is left of its buckets.

    `new`: it was not heard before, so that no bucket here may hold more than is left there.
    """

    requests: float
    tokens: float
    requests_left: float
    tokens_left: float
    new: bool


class HostUse:
    """One process's view of all accounts. `table` has the number of the last process, whose counts are those of other
    hosts. Times are those of the accounts' calls."""

    def __init__(self, table: RateTable) -> None:
        self._table = table
        self._slots: dict[int, int] = {}
        self._keys = np.zeros(0, np.uint64)
        self._used = np.zeros((0, 3))
        """Requests and tokens used, and running requests, by slot in use; as of the last call of `changed`."""

    def changed(self, now_s: float) -> dict[int, Use]:
        """Return the accounts whose use on this host has changed since the last call, by key."""
        keys, slots = self._occupied()
        if not slots.size:
            return {}
        used = self._used_of(slots)
        if not np.array_equal(keys, self._keys):
            self._slots = dict(zip(keys.tolist(), slots.tolist(), strict=True))
            different = self._differing(keys, used)
        else:
            different = np.flatnonzero((used != self._used).any(axis=1))
        self._keys, self._used = keys, used
        return self._uses(different.tolist(), now_s) if different.size else {}

    def in_use(self, now_s: float) -> dict[int, Use]:
        """Return all accounts with running requests here or a bucket that is not full, as of the last call of
        `changed`."""
        if not self._keys.size:
            return {}
        uses = self._uses(range(len(self._keys)), now_s)
        return {key: use for key, use in uses.items() if use.running or self._below(self._slots[key], use)}

    def _below(self, slot: int, use: Use) -> bool:
        """Whether one of the buckets is not full. Of an account that this host has not used, nothing is known."""
        _, size, _, tokens_size = self._table.rates(slot)
        full = _FULL / self._table.parts
        return use.requests_left < size * full or use.tokens_left < tokens_size * full

    @property
    def accounts(self) -> Set[int]:
        return self._slots.keys()

    def _differing(self, keys: NDArray[np.uint64], used: NDArray[np.float64]) -> NDArray[np.int64]:
        before: Mapping[int, Any] = dict(zip(self._keys.tolist(), self._used.tolist(), strict=True))
        nothing = [0.0, 0.0, 0.0]
        found = [before.get(key, nothing) != now for key, now in zip(keys.tolist(), used.tolist(), strict=True)]
        return np.flatnonzero(np.array(found))

    def _occupied(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        table = self._table
        entries = np.frombuffer(table.memory, np.uint64, SLOTS * _ENTRY_FIELDS, table.entries_at)
        keys = entries[::_ENTRY_FIELDS]
        slots = np.flatnonzero(keys)
        return keys[slots], slots

    def _used_of(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return requests and tokens used, and running requests, of some slots. Arrays over the memory end here."""
        table = self._table
        uses = np.frombuffer(table.memory, np.float64, SLOTS * _USE_FIELDS, table.use_at).reshape(SLOTS, _USE_FIELDS)
        counts = np.frombuffer(table.memory, np.int64, SLOTS * table.processes, table.counts_at)
        running = counts.reshape(SLOTS, table.processes)[slots, : table.process].sum(axis=1)
        return np.column_stack((uses[slots, :2], running))

    def _uses(self, places: Iterable[int], now_s: float) -> dict[int, Use]:
        found: dict[int, Use] = {}
        for place in places:
            key = int(self._keys[place])
            requests, tokens, running = self._used[place].tolist()
            found[key] = Use(requests, tokens, int(running), *self._left(self._slots[key], now_s))
        return found

    def _left(self, slot: int, now_s: float) -> tuple[float, float]:
        """Return the levels of both buckets now. Those of an account that only other hosts use are as they were."""
        _, requests, tokens, at_s = self._table.read(slot)
        per_s, size, tokens_per_s, tokens_size = self._table.rates(slot)
        if not size:
            return requests, tokens
        parts, elapsed_s = self._table.parts, max(0.0, now_s - at_s)
        return (
            _level(requests, elapsed_s * per_s / parts, size / parts),
            _level(tokens, elapsed_s * tokens_per_s / parts, tokens_size / parts),
        )

    def follow(self, heard: Mapping[int, Heard], running: Mapping[int, int], now_s: float) -> None:
        """Take on what other hosts have used, and how many requests run there, both by key."""
        with self._table:
            for key, use in heard.items():
                if (slot := self._slot(key)) is not None:
                    self._follow(slot, use, now_s)
            for key, count in running.items():
                if (slot := self._slot(key) if count else self._known(key)) is not None:
                    self._table.set_running(slot, count)

    def _follow(self, slot: int, use: Heard, now_s: float) -> None:
        requests, tokens = self._left(slot, now_s)
        _, size, _, tokens_size = self._table.rates(slot)
        left, tokens_left = claimed_left(use.requests_left, size), claimed_left(use.tokens_left, tokens_size)
        if not size:
            self._table.write(slot, use.requests_left, use.tokens_left, now_s)
            return
        self._table.write(
            slot,
            _lowered(requests, use.requests, left if use.new else math.inf, size),
            _lowered(tokens, use.tokens, tokens_left if use.new else math.inf, tokens_size),
            now_s,
        )

    def rates(self, keys: Iterable[int]) -> dict[int, Rates]:
        """Return the undivided rates of those accounts that this host limits, by key."""
        with self._table:
            slots = {key: self._slot(key) for key in keys}
            found = {key: self._table.rates(slot) for key, slot in slots.items() if slot is not None}
        return {key: rates for key, rates in found.items() if rates[1]}

    def divide(self, parts: int, now_s: float) -> None:
        """Use one of `parts` of each limit and of what is left of it; 1: all of it."""
        table = self._table
        with table:
            change = table.parts / parts
            if change == 1.0:
                return
            levels = {slot: self._left(slot, now_s) for slot in self._occupied()[1].tolist()}
            for slot, left in levels.items():
                requests, tokens = (level * change if level > 0.0 else level for level in left)
                table.write(slot, requests, tokens, now_s)
            table.divide(parts)

    def _slot(self, key: int) -> int | None:
        """Return the slot of an account, and take one if there is room. Hold the lock."""
        slot = self._known(key)
        if slot is None and len(self._slots) < _MOST_PLACED:
            slot = self._slots[key] = self._table.place(key)
        return slot

    def _known(self, key: int) -> int | None:
        slot = self._slots.get(key)
        return slot if slot is not None and self._table.read(slot)[0] == key else None


def _level(level: float, gained: float, size: float) -> float:
    return math.inf if math.isinf(size) else min(size, level + gained)


def _lowered(level: float, used: float, left: float, size: float) -> float:
    """Return a level after use elsewhere. That takes it at most one size below zero, so that a debt ends soon."""
    return max(min(level - used, left), min(level, -size))

"""Request bodies that workers died of, counted by all processes, because a client's retry may reach any process.

The table has one entry per body digest; on a collision the later body gets the entry. An entry is the low half of the
digest and, for each of its last two deaths, the worker's hash and the time. The time of the latest of all deaths
precedes the table.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager

import xxhash

from router.placement.fleet.query_of_death import MAX_DEATHS

PLACES = 4_096
SAME_DEATH_S = 1.0
"""Losses of the same worker that several processes report within this time are one death."""
_LATEST = struct.Struct("@d")
_ENTRY = struct.Struct("@Q" + "Qd" * MAX_DEATHS)
DEATHS_BYTES = _LATEST.size + PLACES * _ENTRY.size


class SharedDeaths:
    """Satisfies `router.placement.fleet.query_of_death.Deaths`.

    All processes of a host read the same monotonic clock. `locked` keeps other processes from writing.
    """

    def __init__(self, memory: mmap.mmap, at: int, locked: Callable[[], AbstractContextManager[None]]) -> None:
        self._memory = memory
        self._at = at
        self._locked = locked

    @property
    def latest_s(self) -> float:
        """Time of the latest death; 0 for none."""
        latest_s: float = _LATEST.unpack_from(self._memory, self._at)[0]
        return latest_s

    def add(self, body: int, worker: str, at_s: float) -> None:
        named = xxhash.xxh3_64_intdigest(worker.encode())
        with self._locked():
            known = self._entry(body)
            if any(other == named and abs(at_s - died_s) < SAME_DEATH_S for other, died_s in known):
                return
            self._write(body, [*known, (named, at_s)][-MAX_DEATHS:])
            _LATEST.pack_into(self._memory, self._at, max(at_s, self.latest_s))

    def times(self, body: int) -> tuple[float, ...]:
        """Return the times of the last deaths with `body`, oldest first."""
        return tuple(sorted(at_s for _, at_s in self._entry(body)))

    def clear(self, body: int) -> None:
        """Forget `body`, because a worker has served it."""
        if self._entry(body):
            with self._locked():
                self._write(body, [])

    def _entry(self, body: int) -> list[tuple[int, float]]:
        found, *values = _ENTRY.unpack_from(self._memory, self._place(body))
        if found != _low(body):
            return []
        deaths = zip(values[::2], values[1::2], strict=True)
        return [(named, at_s) for named, at_s in deaths if at_s]

    def _write(self, body: int, deaths: list[tuple[int, float]]) -> None:
        padded = deaths + [(0, 0.0)] * (MAX_DEATHS - len(deaths))
        flat = [value for death in padded for value in death]
        _ENTRY.pack_into(self._memory, self._place(body), _low(body), *flat)

    def _place(self, body: int) -> int:
        return self._at + _LATEST.size + _low(body) % PLACES * _ENTRY.size


def _low(body: int) -> int:
    return body & 0xFFFF_FFFF_FFFF_FFFF

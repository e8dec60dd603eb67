"""What lately came to a worker's GPU and left it, as its events told: what was there at any moment since."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import inf

KEPT_BLOCKS = 65_536
"""Latest arrivals, and departures, that are always known: 8 bytes each. A GPU that prefills 3,000 blocks/s takes 20 s
to bring so many."""

_ENTRY_BYTES = 8


class NumberLog:
    """Numbers in the order they were written down; the oldest are forgotten. Positions count all there ever were."""

    __slots__ = ("before", "entries")

    def __init__(self) -> None:
        self.entries = array("Q")
        self.before = 0

    @property
    def position(self) -> int:
        """Entries so far."""
        return self.before + len(self.entries)

    def forget(self, entries: int) -> None:
        """Drop the oldest."""
        del self.entries[:entries]
        self.before += entries

    def since(self, position: int) -> array[int]:
        """Entries from `position` on, as far as they are known."""
        return self.entries[max(0, position - self.before) :]

    def positions(self, wanted: int, position: int) -> Iterator[int]:
        """Where `wanted` is written from `position` on."""
        found = self.since(position).tobytes()
        first = max(position, self.before)
        needle = wanted.to_bytes(_ENTRY_BYTES, sys.byteorder)
        at = found.find(needle)
        while at >= 0:
            if at % _ENTRY_BYTES == 0:
                yield first + at // _ENTRY_BYTES
            at = found.find(needle, at + 1)


class EvictionLog:
    """Arrivals, in runs that came at once, and departures, with the order between them.

    A block arrives again when a further copy of it is announced, and departs with its last copy. Written for every
    event, in bulk (`block_copies.Holdings.remove` appends to `departed`); read only where a report differs.
    """

    __slots__ = ("_arrived", "_departed", "_departed_by_run", "_runs", "departed")

    def __init__(self) -> None:
        self._arrived = NumberLog()
        self._departed = NumberLog()
        self.departed = self._departed.entries
        """Where hashes of departing blocks are appended."""
        self._runs = NumberLog()
        """Position among arrivals at which each run begins."""
        self._departed_by_run = NumberLog()
        """Departures before each run."""

    @property
    def arrivals(self) -> int:
        """Blocks arrived so far."""
        return self._arrived.position

    @property
    def departures(self) -> int:
        """Blocks departed so far."""
        return self._departed.position

    def arrive(self, hashes: Sequence[int]) -> None:
        """Blocks of one announcement."""
        self._runs.entries.append(self._arrived.position)
        self._departed_by_run.entries.append(self._departed.position)
        self._arrived.entries.extend(hashes)

    def bound(self) -> None:
        """Forget the oldest half where there is twice as much as must be known."""
        if len(self._departed.entries) > 2 * KEPT_BLOCKS:
            self._departed.forget(KEPT_BLOCKS)
        if len(self._arrived.entries) > 2 * KEPT_BLOCKS:
            self._arrived.forget(KEPT_BLOCKS)
            runs = max(0, bisect_right(self._runs.entries, self._arrived.before) - 1)
            self._runs.forget(runs)
            self._departed_by_run.forget(runs)

    def reaches(self, arrivals: int, departures: int) -> bool:
        """Whether all since then is known."""
        return arrivals >= self._arrived.before and departures >= self._departed.before

    def departed_since(self, departures: int) -> array[int] | None:
        """What departed since there were so many; None when that is too long ago."""
        return self._departed.since(departures) if departures >= self._departed.before else None

    def changes(self, hashes: Sequence[int], arrivals: int, departures: int) -> Iterator[dict[int, bool]]:
        """Which of `hashes` came (True) or went since then, moment by moment; what came in one run came at once."""
        moments: dict[tuple[float, float], dict[int, bool]] = {}
        for block_hash in hashes:
            for position in self._arrived.positions(block_hash, arrivals):
                run = bisect_right(self._runs.entries, position) - 1
                moments.setdefault((self._departed_by_run.entries[run], run), {})[block_hash] = True
            for position in self._departed.positions(block_hash, departures):
                moments.setdefault((position, inf), {})[block_hash] = False
        for moment in sorted(moments):
            yield moments[moment]

"""Recent arrivals and departures of blocks on a worker's GPU, from its KV events. They show the content of the cache at
any recent moment.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import inf

KEPT_BLOCKS = 65_536
"""Arrivals and departures that are always kept, 8 bytes each. A GPU that prefills 3,000 blocks/s takes 20 s to bring
this many."""

_ENTRY_BYTES = 8


class NumberLog:
    """Numbers in the order in which they were appended; the oldest are dropped. Positions count dropped numbers too."""

    def __init__(self) -> None:
        self.entries = array("Q")
        self.before = 0

    @property
    def position(self) -> int:
        return self.before + len(self.entries)

    def forget(self, entries: int) -> None:
        del self.entries[:entries]
        self.before += entries

    def since(self, position: int) -> array[int]:
        return self.entries[max(0, position - self.before) :]

    def positions(self, wanted: int, position: int) -> Iterator[int]:
        found = self.since(position).tobytes()
        first = max(position, self.before)
        needle = wanted.to_bytes(_ENTRY_BYTES, sys.byteorder)
        at = found.find(needle)
        while at >= 0:
            if at % _ENTRY_BYTES == 0:
                yield first + at // _ENTRY_BYTES
            at = found.find(needle, at + 1)


class EvictionLog:
    """Arrivals, in runs announced together, and departures, with the order between them.

    A block arrives again with each further copy, and departs with its last copy. Events are written in bulk
    (`block_copies.BlockCopies.remove` appends to `departed`) and read only if a report differs from the prediction.
    """

    def __init__(self) -> None:
        self._arrived = NumberLog()
        self._departed = NumberLog()
        self.departed = self._departed.entries
        """Hashes of departed blocks are appended here."""
        self._runs = NumberLog()
        """Position among the arrivals at which each run begins."""
        self._departed_by_run = NumberLog()
        """Number of departures before each run."""

    @property
    def arrivals(self) -> int:
        return self._arrived.position

    @property
    def departures(self) -> int:
        return self._departed.position

    def arrive(self, hashes: Sequence[int]) -> None:
        if not len(hashes):
            return
        self._runs.entries.append(self._arrived.position)
        self._departed_by_run.entries.append(self._departed.position)
        self._arrived.entries.extend(hashes)

    def bound(self) -> None:
        """Drop the oldest half once there are twice as many entries as `KEPT_BLOCKS`."""
        if len(self._departed.entries) > 2 * KEPT_BLOCKS:
            self._departed.forget(KEPT_BLOCKS)
        if len(self._arrived.entries) > 2 * KEPT_BLOCKS:
            self._arrived.forget(KEPT_BLOCKS)
            runs = max(0, bisect_right(self._runs.entries, self._arrived.before) - 1)
            self._runs.forget(runs)
            self._departed_by_run.forget(runs)

    def reaches(self, arrivals: int, departures: int) -> bool:
        """Return whether everything since these positions is still kept."""
        return arrivals >= self._arrived.before and departures >= self._departed.before

    def departed_since(self, departures: int) -> array[int] | None:
        """Return the departures since position `departures`; None if the oldest of them were dropped."""
        return self._departed.since(departures) if departures >= self._departed.before else None

    def changes(self, hashes: Sequence[int], arrivals: int, departures: int) -> Iterator[dict[int, bool]]:
        """Yield one mapping per moment: each of `hashes` that arrived (True) or departed (False). One run arrives in
        one moment.
        """
        moments: dict[tuple[float, float], dict[int, bool]] = {}
        for block_hash in hashes:
            for position in self._arrived.positions(block_hash, arrivals):
                run = bisect_right(self._runs.entries, position) - 1
                moments.setdefault((self._departed_by_run.entries[run], run), {})[block_hash] = True
            for position in self._departed.positions(block_hash, departures):
                moments.setdefault((position, inf), {})[block_hash] = False
        for moment in sorted(moments):
            yield moments[moment]

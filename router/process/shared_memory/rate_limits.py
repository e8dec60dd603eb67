"""The lock around the shared buckets of all limits (`router.limits.table`).

It is a file lock, which the system releases if its process dies. Nobody holds it for more than a few microseconds, so a
process that finds it taken tries again at once, and then after short sleeps. A process that the system has stopped in
between could keep it for longer. Then the others go on without it after `PATIENCE_S`: a lost charge is better than a
gateway that waits.
"""

from __future__ import annotations

import fcntl
import os
from time import perf_counter, sleep

PATIENCE_S = 0.02
"""Longer than the time for which a busy host takes the processor from a process that holds the lock."""
_QUICK_TRIES = 20
_PAUSE_S = 0.000_05
_LOCK_AT = 1 << 41
"""Offset of the lock, far behind the end of the table and behind the locks of workers."""


class RateLock:
    """Satisfies `router.limits.table.Lock`. `missed` counts the times that it was not had in time."""

    def __init__(self, table: int) -> None:
        self._table = table
        self._held = False
        self.missed = 0

    def acquire(self) -> None:
        """Lock, or go on without the lock after `PATIENCE_S`."""
        self._held = self._try()
        if self._held:
            return
        end_s, tries = perf_counter() + PATIENCE_S, 0
        while not self._held and perf_counter() < end_s:
            if tries < _QUICK_TRIES:
                os.sched_yield()
            else:
                sleep(_PAUSE_S)  # the holder may need this processor
            tries += 1
            self._held = self._try()
        self.missed += not self._held

    def release(self) -> None:
        """Unlock, if the lock is held."""
        if self._held:
            self._held = False
            fcntl.lockf(self._table, fcntl.LOCK_UN, 1, _LOCK_AT)

    def _try(self) -> bool:
        try:
            fcntl.lockf(self._table, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _LOCK_AT)
        except OSError:
            return False
        return True

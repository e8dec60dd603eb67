"""The order in which workers were last used: round robin that also works while workers join and leave.

With different weights a worker's turn comes in proportion to its weight.
"""

from __future__ import annotations

import numpy as np

from policies.view import Column, FleetView, LifecycleEvent, LifecycleEventKind, WorkerId
from policies.weights import pause


class LeastRecentlyUsed:
    """Remember the order in which workers were last chosen, for the `kept` most recently chosen ones."""

    def __init__(self, kept: int = 4_096) -> None:
        self._last: dict[WorkerId, float] = {}
        self._count = 0
        self._kept = kept

    def observe(self, event: LifecycleEvent) -> None:
        if event.kind is not LifecycleEventKind.RESERVED:
            return
        self._count += 1
        self._last.pop(event.worker, None)
        self._last[event.worker] = self._count + pause(event)
        if len(self._last) > self._kept:
            del self._last[next(iter(self._last))]

    def last(self, worker: WorkerId) -> float:
        """Return the rank of the last choice of `worker`: smaller if longer ago, 0 if it never was chosen."""
        return self._last.get(worker, 0.0)

    def of(self, fleet: FleetView) -> Column:
        """Return `last` of every candidate."""
        return np.array([self._last.get(worker, 0.0) for worker in fleet.ids])

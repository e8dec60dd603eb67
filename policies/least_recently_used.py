"""The order in which workers were last used: round robin that also works while workers join and leave.

With different weights a worker's turn comes in proportion to its weight.
"""

from __future__ import annotations

from typing import Any

from policies.by_worker import ByWorker
from policies.view import Column, FleetView, LifecycleEvent, LifecycleEventKind, WorkerId, WorkerView
from policies.weights import pause


class LeastRecentlyUsed:
    """Remember the order in which workers were last chosen, for the `kept` most recently chosen ones."""

    def __init__(self, kept: int = 4_096) -> None:
        self._last: dict[WorkerId, float] = {}
        self._count = 0
        self._kept = kept
        self._by_worker = ByWorker(1, self._fields)

    def observe(self, event: LifecycleEvent) -> None:
        if event.kind is not LifecycleEventKind.RESERVED:
            return
        self._count += 1
        self._last.pop(event.worker, None)
        self._last[event.worker] = self._count + pause(event)
        self._by_worker.changed(event.worker)
        if len(self._last) > self._kept:
            oldest = next(iter(self._last))
            del self._last[oldest]
            self._by_worker.changed(oldest)

    def last(self, worker: WorkerId) -> float:
        """Return the rank of the last choice of `worker`: smaller if longer ago, 0 if it never was chosen."""
        return self._last.get(worker, 0.0)

    def column(self, fleet: FleetView) -> Column:
        """Return `last` of every candidate. Do not change the array."""
        column: Column = self._by_worker.arrays(fleet.roster)[0]
        return column

    def of(self, facts: WorkerView | FleetView) -> Any:
        """Return `last` of one worker, or of every candidate: a fact of `policies.ranking`."""
        return self._last.get(facts.id, 0) if isinstance(facts, WorkerView) else self.column(facts)

    def __deepcopy__(self, memo: dict[int, object]) -> LeastRecentlyUsed:
        # A copied array would belong to a copied roster, and the copied function to the original.
        copy = LeastRecentlyUsed(self._kept)
        copy._last, copy._count = self._last.copy(), self._count
        return copy

    def __getstate__(self) -> tuple[dict[WorkerId, float], int, int]:
        return self._last, self._count, self._kept

    def __setstate__(self, state: tuple[dict[WorkerId, float], int, int]) -> None:
        self._last, self._count, self._kept = state
        self._by_worker = ByWorker(1, self._fields)

    def _fields(self, worker: WorkerId) -> tuple[float, ...]:
        return (self._last.get(worker, 0),)

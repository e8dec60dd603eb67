"""The order in which workers were last used: round robin that also works while workers join and leave."""

from __future__ import annotations

from policies.view import LifecycleEvent, LifecycleEventKind, WorkerId


class LeastRecentlyUsed:
    """Remember the order in which workers were last chosen, for the `kept` most recently chosen ones."""

    def __init__(self, kept: int = 4_096) -> None:
        self._last: dict[WorkerId, int] = {}
        self._count = 0
        self._kept = kept

    def observe(self, event: LifecycleEvent) -> None:
        """Record a reservation and ignore other events."""
        if event.kind is not LifecycleEventKind.RESERVED:
            return
        self._count += 1
        self._last.pop(event.worker, None)
        self._last[event.worker] = self._count
        if len(self._last) > self._kept:
            del self._last[next(iter(self._last))]

    def last(self, worker: WorkerId) -> int:
        """Return the rank of the last choice of `worker`: smaller if longer ago, 0 if it never was chosen."""
        return self._last.get(worker, 0)

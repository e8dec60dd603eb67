"""Whose turn it is: round robin as 'least recently booked', which survives workers that come and go."""

from __future__ import annotations

from policies.view import LifecycleEvent, LifecycleEventKind, WorkerId


class LeastRecentlyUsed:
    """Remembers in which order workers were last booked. Bounded: forgets the longest unused beyond `kept`."""

    def __init__(self, kept: int = 4_096) -> None:
        self._last: dict[WorkerId, int] = {}
        self._count = 0
        self._kept = kept

    def observe(self, event: LifecycleEvent) -> None:
        """Take note of a booking; other edges do not matter here."""
        if event.kind is not LifecycleEventKind.RESERVED:
            return
        self._count += 1
        self._last.pop(event.worker, None)
        self._last[event.worker] = self._count
        if len(self._last) > self._kept:
            del self._last[next(iter(self._last))]

    def last(self, worker: WorkerId) -> int:
        """A number that is smaller the longer ago `worker` was booked; 0 if it never was."""
        return self._last.get(worker, 0)

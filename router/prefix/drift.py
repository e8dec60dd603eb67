"""Whether what a worker reports keeps agreeing with what its events told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

WINDOW = 32
"""Reports looked back on."""
TOLERATED = 7
"""Of these, so many may disagree: events and answers travel on different ways, and a request may meet what was evicted
after it had been placed."""
SETTLED = 8
"""Event batches or reports to wait for before a disagreement is judged: what explains it may still be on its way."""


class Mark(NamedTuple):
    """Where a view stood when a request was booked: its generation, blocks removed, reports, batches."""

    generation: int
    removed_blocks: int
    reports: int
    batches: int


class Suspicion(NamedTuple):
    """A report that disagreed. `too_many` blocks were claimed and not found, or `missed` was found and not claimed."""

    booked: Mark
    reported: Mark
    too_many: Sequence[int]
    missed: int | None


class Drift:
    """Counts reports that nothing explains. `found` says what was seen once they are too many; it stays said."""

    __slots__ = ("_recent", "_suspicions", "found", "mismatches")

    def __init__(self) -> None:
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        self._suspicions: deque[Suspicion] = deque()
        self.found = ""
        self.mismatches = 0

    def agreed(self) -> None:
        """A report agreed."""
        self._recent.append(False)

    def suspect(self, suspicion: Suspicion) -> None:
        """A report did not; `settle` will judge it."""
        self._suspicions.append(suspicion)

    def settle(self, now: Mark, unannounced: Callable[[int], bool]) -> list[Sequence[int]]:
        """Judge what is old enough; returns the blocks that were claimed without being there.

        `unannounced` tells whether a missed block is still known by reports only.
        """
        wrong: list[Sequence[int]] = []
        while self._suspicions and _is_settled(self._suspicions[0].reported, now):
            suspicion = self._suspicions.popleft()
            if _is_explained(suspicion, now, unannounced):
                self._recent.append(False)
                continue
            self.mismatches += 1
            self._recent.append(True)
            if suspicion.too_many:
                wrong.append(suspicion.too_many)
            wrongs = sum(self._recent)
            if wrongs > TOLERATED:
                self.found = f"{wrongs} of the last {len(self._recent)} reports differed from what its events had told"
        return wrong

    def clear(self) -> None:
        """The view begins anew."""
        self._recent.clear()
        self._suspicions.clear()
        self.found = ""


def _is_settled(then: Mark, now: Mark) -> bool:
    later = max(now.batches - then.batches, now.reports - then.reports)
    return later >= SETTLED or now.generation != then.generation


def _is_explained(suspicion: Suspicion, now: Mark, unannounced: Callable[[int], bool]) -> bool:
    if now.generation != suspicion.booked.generation:
        return True
    if suspicion.missed is not None:
        return not unannounced(suspicion.missed)
    return now.removed_blocks - suspicion.booked.removed_blocks >= len(suspicion.too_many)

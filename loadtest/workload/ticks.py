"""Timestamps that were rounded: all of a tick's rows at once would be a thundering herd that nobody sent."""

from __future__ import annotations

LEAST_S, LARGEST_S = 1.0, 10.0
"""Finer steps are times as they were; rows further apart than the largest stand so by chance."""

ROUNDING_S = 0.01
"""Mooncake's ticks of 3 s are off by up to 3 ms."""

MOST_GAPS = 1_000
"""Timestamps with more different gaps than this between them stand on no ticks."""


class Ticks:
    """Sees a trace's timestamps in order; tells how far apart the ticks are that they stand on."""

    def __init__(self) -> None:
        self._before_s: float | None = None
        self._gaps: set[int] = set()
        self._shared = False

    def see(self, at_s: float) -> None:
        """The next row's timestamp."""
        gap = 0 if self._before_s is None else round(abs(at_s - self._before_s) / ROUNDING_S)
        if gap and len(self._gaps) <= MOST_GAPS:
            self._gaps.add(gap)
        self._shared |= self._before_s == at_s
        self._before_s = at_s

    @property
    def step_s(self) -> float:
        """From tick to tick; 0 without: no two rows share a timestamp, or gaps are no multiples of the least."""
        step = min(self._gaps, default=0)
        regular = len(self._gaps) <= MOST_GAPS and all(_multiple(gap, step) for gap in self._gaps)
        step_s = step * ROUNDING_S
        return step_s if self._shared and regular and LEAST_S <= step_s <= LARGEST_S else 0.0


def _multiple(gap: int, step: int) -> bool:
    rest = gap % step
    return min(rest, step - rest) <= 1

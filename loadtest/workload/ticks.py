"""Rounded timestamps of traces. Replayed as they are, all rows of a tick would arrive at once, which no client sent."""

from __future__ import annotations

LEAST_S, LARGEST_S = 1.0, 10.0
"""Smaller steps are the real times. Rows further apart than the largest step are so by chance."""

ROUNDING_S = 0.01
"""Mooncake's ticks of 3 s are off by up to 3 ms."""

MOST_GAPS = 1_000
"""Timestamps with more different gaps than this have no ticks."""


class Ticks:
    """Reads a trace's timestamps in order, and finds the distance between the ticks to which they were rounded."""

    def __init__(self) -> None:
        self._before_s: float | None = None
        self._gaps: set[int] = set()
        self._shared = False

    def see(self, at_s: float) -> None:
        """Note the next row's timestamp."""
        gap = 0 if self._before_s is None else round(abs(at_s - self._before_s) / ROUNDING_S)
        if gap and len(self._gaps) <= MOST_GAPS:
            self._gaps.add(gap)
        self._shared |= self._before_s == at_s
        self._before_s = at_s

    @property
    def step_s(self) -> float:
        """Seconds between ticks; 0 if no two rows share a timestamp, or if gaps are no multiples of the least gap."""
        step = min(self._gaps, default=0)
        regular = len(self._gaps) <= MOST_GAPS and all(_multiple(gap, step) for gap in self._gaps)
        step_s = step * ROUNDING_S
        return step_s if self._shared and regular and LEAST_S <= step_s <= LARGEST_S else 0.0


def _multiple(gap: int, step: int) -> bool:
    rest = gap % step
    # Two rounded timestamps put a gap off by up to one ROUNDING_S, in either direction.
    return min(rest, step - rest) <= 1

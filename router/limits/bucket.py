"""The arithmetic of a token bucket. A bucket is its level and the time of that level, both absolute.

A bucket gains `per_s` units a second up to `burst`. It may be below zero: a request that used more than its estimate is
charged for all of it.
"""

from __future__ import annotations

import math
from typing import Final

_SLACK = 1e-9
"""Levels are sums of floats. A request that waits exactly as long as it was asked to must pass."""


class Rate:
    """How fast a bucket fills, and how much it holds. `per_minute` is the limit as it is set; 0 stands for no limit.

    The bucket is one of `parts` into which the limit is divided. `most` is the size of all parts, and the largest cost.
    """

    __slots__ = ("burst", "most", "per_minute", "per_s", "slack")

    def __init__(self, per_minute: int, burst: float | None = None, parts: float = 1.0) -> None:
        self.per_minute = per_minute
        # a bucket whose limit was removed is full at once
        self.per_s = per_minute / 60.0 / parts if per_minute else math.inf
        self.most = math.inf if not per_minute else float(per_minute if burst is None else burst)
        self.burst = self.most / parts
        self.slack = _SLACK * self.burst if per_minute else 0.0

    def wait_s(self, level: float, cost: float) -> float:
        """Return how long a bucket at `level` takes until `cost` may be taken; 0 if it may, infinity if it never may.

        A full part lends what it lacks of a cost that the whole could hold.
        """
        if level + self.slack >= cost:
            return 0.0
        if cost > self.most:
            return math.inf
        needed = min(cost, self.burst)
        return 0.0 if level + self.slack >= needed else (needed - level) / self.per_s

    @property
    def whole(self) -> tuple[float, float]:
        """Units per second and size of all parts; 0 and infinity without a limit."""
        return self.per_minute / 60.0, self.most

    def full_s(self, level: float) -> float:
        return max(0.0, (self.burst - level) / self.per_s)


IMPLAUSIBLE: Final = 10.0
"""Nobody uses this many times the size of a bucket more than it held: a claim beyond it is nonsense, not a burst."""


def claimed_left(left: float, size: float) -> float:
    """Return what another host's claim of a level means for a bucket of `size`: infinity if it is nonsense.

    A debt there is not a debt here: the bucket is then empty.
    """
    return max(left, 0.0) if left >= -IMPLAUSIBLE * size else math.inf


class Window:
    """What one other host can have used of one bucket: its own bucket's size at once, then as fast as that fills."""

    __slots__ = ("_at_s", "_spent")

    def __init__(self, now_s: float) -> None:
        self._spent = 0.0
        self._at_s = now_s

    def credit(self, used: float, per_s: float, size: float, now_s: float) -> float | None:
        """Return how much of `used` more since the last call counts now; None if the claim is nonsense.

        Below zero, an estimate was corrected. The rest counts with later calls.
        """
        if math.isinf(size):
            return used
        spent = max(0.0, self._spent - max(0.0, now_s - self._at_s) * per_s)
        if not -IMPLAUSIBLE * size <= used <= size - spent + IMPLAUSIBLE * size:
            return None
        credited = max(-size, min(used, size - spent))
        self._spent, self._at_s = max(0.0, spent + credited), now_s
        return credited


def shown_time(seconds: float) -> str:
    """Return a duration as OpenAI's headers write it: 120ms, 8.64s, 6m0s, 1h0m0s."""
    if seconds < 1.0:
        return f"{math.ceil(seconds * 1000.0)}ms"
    if seconds < 60.0:
        return f"{math.ceil(seconds * 100.0) / 100.0:g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"

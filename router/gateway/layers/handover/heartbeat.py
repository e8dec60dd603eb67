from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

_BEAT_S: Final = 0.25
_GAPS_KEPT: Final = 64


class Heartbeat:
    """Notes when the event loop stood still, while anyone listens.

    An answer may have lain in its socket meanwhile, so a lease that began with it is older than it looks.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._listeners = 0
        self._beat_s = 0.0
        self._gaps: deque[tuple[float, float]] = deque(maxlen=_GAPS_KEPT)
        """Ends and lengths of gaps."""
        self._timer: asyncio.TimerHandle | None = None

    def listen(self) -> None:
        self._listeners += 1
        if self._timer is None:
            self._beat_s = self._loop.time()
            self._timer = self._loop.call_later(_BEAT_S, self._beat)

    def leave(self) -> None:
        self._listeners -= 1
        if not self._listeners and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def gap_s(self, since_s: float) -> float:
        """Return the longest time since `since_s` for which the loop stood still, the present one included."""
        now_s = self._loop.time()
        present_s = max(0.0, now_s - max(self._beat_s, since_s) - _BEAT_S)
        return max([present_s, *[gap_s for end_s, gap_s in self._gaps if end_s >= since_s]])

    def _beat(self) -> None:
        now_s = self._loop.time()
        gap_s = now_s - self._beat_s - _BEAT_S
        if gap_s > _BEAT_S:
            self._gaps.append((now_s, gap_s))
        self._beat_s = now_s
        self._timer = self._loop.call_later(_BEAT_S, self._beat)

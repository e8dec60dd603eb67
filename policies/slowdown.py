from __future__ import annotations

from collections import OrderedDict

from policies.view import LifecycleEvent, LifecycleEventKind

_KEPT = 4_096
_WAITING_KEPT = 65_536
_DOUBLED = 2.0


class _Delay:
    """Times to first token of one prefix: the mean of the previous window, and the sum of the current one."""

    __slots__ = ("before_s", "count", "sum_s", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.before_s = 0.0
        self.sum_s = 0.0
        self.count = 0

    def observe(self, ttft_s: float, window: int) -> None:
        if window != self.window:
            adjacent = window == self.window + 1 and self.count
            self.before_s = self.sum_s / self.count if adjacent else 0.0
            self.window, self.sum_s, self.count = window, 0.0, 0
        self.sum_s += ttft_s
        self.count += 1


class Slowdown:
    """Compare times to first token in consecutive windows that are aligned to the clock. Memory is bounded."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._reserved: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._delays: OrderedDict[int, _Delay] = OrderedDict()

    def observe(self, event: LifecycleEvent, prefix: int | None) -> None:
        if event.kind is LifecycleEventKind.RESERVED:
            if prefix is not None:
                self._reserved[event.request.id] = (event.now_s, prefix)
                if len(self._reserved) > _WAITING_KEPT:
                    self._reserved.popitem(last=False)
            return
        reserved = self._reserved.pop(event.request.id, None)
        if reserved is not None and event.kind is LifecycleEventKind.FIRST_TOKEN:
            self._first_token(event.now_s - reserved[0], reserved[1], int(event.now_s // self._window_s))

    def slowed(self, prefix: int | None, now_s: float) -> bool:
        """Return whether the mean of the window at `now_s` is more than twice that of the previous window."""
        delay = None if prefix is None else self._delays.get(prefix)
        if delay is None or delay.window != int(now_s // self._window_s) or not delay.before_s:
            return False
        return delay.sum_s / delay.count > _DOUBLED * delay.before_s

    def _first_token(self, ttft_s: float, prefix: int, window: int) -> None:
        delay = self._delays.pop(prefix, None) or _Delay(window)
        self._delays[prefix] = delay
        delay.observe(ttft_s, window)
        if len(self._delays) > _KEPT:
            self._delays.popitem(last=False)

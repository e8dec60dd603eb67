"""Shares the event loop between the proxy and the KV events of all workers.

A ZMQ descriptor is edge-triggered: once readable, its socket must be drained, however much that is. So sockets with
something to read queue up here, and one turn of the loop spends about `slice_s` on them all together before it lets
the proxy's own descriptors be served again. What remains waits in ZMQ's queues.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

SLICE_S = 0.001

Drain = Callable[[float], bool]
"""Reads until there is nothing left (False) or the given `time.perf_counter` has come (True: there may be more)."""


class EventPump:
    """A fair queue of sockets to drain. `observe` is given the seconds each turn took."""

    def __init__(self, observe: Callable[[float], None], slice_s: float = SLICE_S) -> None:
        self._observe = observe
        self._slice_s = slice_s
        self._ready: deque[Drain] = deque()
        self._scheduled: asyncio.Handle | None = None
        self._turns = 0
        self._worst_s = 0.0

    def wake(self, drain: Drain) -> None:
        """Have `drain` called, at the earliest in this turn's callbacks. Waking twice is waking once."""
        if drain not in self._ready:
            self._ready.append(drain)
        self._schedule()

    def drop(self, drain: Drain) -> None:
        """Forget `drain`: its socket is about to be closed."""
        if drain in self._ready:
            self._ready.remove(drain)

    def statistics(self) -> dict[str, float]:
        """Turns taken, sockets waiting, and the longest turn in seconds."""
        return {"turns": self._turns, "waiting": len(self._ready), "worst_turn_s": self._worst_s}

    def _schedule(self) -> None:
        if self._scheduled is None and self._ready:
            self._scheduled = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = None
        started_s = now_s = time.perf_counter()
        deadline_s = started_s + self._slice_s
        while self._ready:
            drain = self._ready.popleft()
            if drain(deadline_s) and drain not in self._ready:
                self._ready.append(drain)
            now_s = time.perf_counter()
            if now_s >= deadline_s:
                break
        self._turns += 1
        self._worst_s = max(self._worst_s, now_s - started_s)
        self._observe(now_s - started_s)
        self._schedule()

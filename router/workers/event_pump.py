"""Share the event loop between the data plane and the KV events of all workers.

A ZMQ descriptor is edge-triggered: once readable, its socket must be drained completely. So readable sockets queue
here. One iteration of the event loop spends about `slice_s` on all of them together, and then serves the data plane's
descriptors. Further messages wait in ZMQ's queues.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

SLICE_S = 0.001

Drain = Callable[[float], bool]
"""A function that reads until no message is left (returns False) or until the given `time.perf_counter` (returns True,
because there may be more).
"""


class EventPump:
    """A fair queue of sockets to drain."""

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self._slice_s = slice_s
        self._ready: deque[Drain] = deque()
        self._scheduled: asyncio.Handle | None = None

    def wake(self, drain: Drain) -> None:
        """Call `drain` in this iteration at the earliest. A second call before that changes nothing."""
        if drain not in self._ready:
            self._ready.append(drain)
        self._schedule()

    def drop(self, drain: Drain) -> None:
        """Forget `drain`, because its socket is about to be closed."""
        if drain in self._ready:
            self._ready.remove(drain)

    def _schedule(self) -> None:
        if self._scheduled is None and self._ready:
            self._scheduled = asyncio.get_running_loop().call_soon(self._iterate)

    def _iterate(self) -> None:
        self._scheduled = None
        deadline_s = time.perf_counter() + self._slice_s
        while self._ready:
            drain = self._ready.popleft()
            if drain(deadline_s) and drain not in self._ready:
                self._ready.append(drain)
            if time.perf_counter() >= deadline_s:
                break
        self._schedule()

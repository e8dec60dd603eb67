"""The lateness of timers on the event loop, a delay that every stream of this process may have."""

from __future__ import annotations

import asyncio

from router.metrics.instruments import Distribution

DEFAULT_INTERVAL_S = 0.1


class LoopLag:
    """Sleep `interval_s` repeatedly, and count the lateness of each wake-up in seconds in `lags`."""

    def __init__(self, lags: Distribution, interval_s: float = DEFAULT_INTERVAL_S) -> None:
        self._lags = lags
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._sample(), name="loop-lag")

    async def aclose(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    async def _sample(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due_s = clock() + self._interval_s
            await asyncio.sleep(self._interval_s)
            self._lags.observe(max(0.0, clock() - due_s))

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from backends.engine.engine import Engine, StepResult

# A process that was delayed longer than this does not catch up: the rest of the delay stays.
_CATCH_UP_S = 0.25
# Event loops wait in whole milliseconds; shorter waits are carried into the next step.
_SHORTEST_WAIT_S = 0.0005


class EngineClock:
    """Step the engine while it has work, and deliver each step's results when the step ends.

    Steps follow each other at absolute times, so that late wake-ups do not add up. `time_scale` stretches durations; at
    0 nothing waits.
    """

    def __init__(self, engine: Engine, time_scale: float, on_step: Callable[[StepResult, float], None]) -> None:
        self._engine = engine
        self._time_scale = time_scale
        self._on_step = on_step
        self._work = asyncio.Event()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._steps = 0
        self._busy_s = 0.0
        self._late_s = 0.0

    def wake(self) -> None:
        self._work.set()

    def freeze(self) -> None:
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()

    async def run(self) -> None:
        while True:
            self._work.clear()
            if not self._engine.has_work:
                await self._work.wait()
            await self._thawed.wait()
            await self._run_busy()

    async def _run_busy(self) -> None:
        due_s = time.monotonic()
        while self._thawed.is_set() and (result := self._engine.step(due_s)) is not None:
            due_s += result.duration_s * self._time_scale
            now_s = await self._wait_until(due_s)
            self._steps += 1
            self._busy_s += result.duration_s
            self._on_step(result, now_s)
            due_s = now_s if self._time_scale == 0 else max(due_s, now_s - _CATCH_UP_S)

    async def _wait_until(self, due_s: float) -> float:
        # At least one iteration of the event loop, so that sockets are served between any two steps.
        left_s = due_s - time.monotonic()
        await asyncio.sleep(left_s if left_s > _SHORTEST_WAIT_S else 0)
        now_s = time.monotonic()
        self._late_s = now_s - due_s
        return now_s

    def statistics(self) -> dict[str, Any]:
        """Return the number of steps so far, their modelled seconds, and the lateness of the last step's end."""
        return {"steps": self._steps, "busy_s": self._busy_s, "late_s": self._late_s}

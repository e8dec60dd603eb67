"""Long work on the event loop, divided over many iterations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")

SLICE_S = 0.002
"""The time per iteration for all such work. The last step may exceed it."""


class TimeSlices:
    """Gives the slice of each loop iteration to one request at a time, in turn."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._owner = asyncio.Lock()
        self._taken = False

    def take(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Take the slice of this iteration for work that cannot be divided. Return False if it is taken."""
        if self._taken or self._owner.locked():
            return False
        self._taken = True
        loop.call_soon(self._next_iteration)
        return True

    def _next_iteration(self) -> None:
        self._taken = False

    async def available(self) -> None:
        async with self._owner:
            await asyncio.sleep(0)

    async def finish(self, steps: Generator[None, None, T]) -> T:
        """Run `steps` to the end, one slice per iteration. Return their result or raise their exception."""
        while True:
            async with self._owner:
                until_s = self._clock() + SLICE_S
                while self._clock() < until_s:
                    try:
                        next(steps)
                    except StopIteration as end:
                        found: T = end.value
                        return found
                await asyncio.sleep(0)  # with the lock held, so that another request gets the next slice

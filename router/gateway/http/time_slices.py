"""Long work on the event loop, done a little in each of its turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")

SLICE_S = 0.002
"""How much of a turn such work takes, one step more or less, however much of it there is."""


class TimeSlices:
    """Gives a slice of each turn to the work of one request, and of the next turn to that of the next request."""

    __slots__ = ("_clock", "_mine", "_taken")

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._mine = asyncio.Lock()
        self._taken = False

    def take(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Take the whole slice of this turn, for work that cannot be divided; False where somebody has it already."""
        if self._taken or self._mine.locked():
            return False
        self._taken = True
        loop.call_soon(self._next_turn)
        return True

    def _next_turn(self) -> None:
        self._taken = False

    async def turn(self) -> None:
        """Wait for a turn whose slice nobody has."""
        async with self._mine:
            await asyncio.sleep(0)

    async def finish(self, steps: Generator[None, None, T]) -> T:
        """What `steps` come to; raises what they raise."""
        while True:
            async with self._mine:
                until_s = self._clock() + SLICE_S
                while self._clock() < until_s:
                    try:
                        next(steps)
                    except StopIteration as end:
                        found: T = end.value
                        return found
                await asyncio.sleep(0)  # with the lock held: what comes next has the next turn

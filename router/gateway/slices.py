"""Long work on the event loop, done a little in each of its turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")

SLICE_S = 0.002
"""How much of a turn such work takes, one step more or less, however much of it there is."""


class Slices:
    """Gives a slice of each turn to the work of one request, and of the next turn to that of the next request."""

    __slots__ = ("_clock", "_mine")

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._mine = asyncio.Lock()

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

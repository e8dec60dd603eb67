"""A clock that jumps from event to event."""

from __future__ import annotations

import gc
import heapq
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, TypeVarTuple

Arguments = TypeVarTuple("Arguments")


class VirtualTime:
    """Events in order of time. Events at equal times run in the order of scheduling, so that runs repeat."""

    __slots__ = ("_order", "_queue", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()

    @property
    def pending(self) -> int:
        """The number of events still to come."""
        return len(self._queue)

    def at(self, at_s: float, action: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        """Schedule `action` with `arguments` at `at_s`.

        Raises:
            ValueError: `at_s` has passed.
        """
        if at_s < self.now_s:
            raise ValueError(f"{at_s} s has passed: it is {self.now_s} s")
        heapq.heappush(self._queue, (at_s, next(self._order), action, arguments))

    def after(self, delay_s: float, action: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        """Schedule `action` with `arguments` in `delay_s` seconds."""
        self.at(self.now_s + delay_s, action, *arguments)

    def run(self, until_s: float = inf) -> None:
        """Run events until none is left or the next one is later than `until_s`."""
        queue, pop = self._queue, heapq.heappop
        with _without_collections():
            while queue and queue[0][0] <= until_s:
                self.now_s, _, action, arguments = pop(queue)
                action(*arguments)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Disable the garbage collector.

    A run makes few reference cycles but very many objects, so the search for cycles would take a sixth of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

"""How many answers may wait at once for their first token on another worker, and which of the others is next."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable

from router.requests.queues.request import WaitingRequest


class Permits:
    """One worker's death moves hundreds of answers, each with a long prompt. They go in turns, the oldest first.

    `limit` returns how many may be on their way at once. A request has a permit from its placement to its first token
    or its end; while it waits in another queue, it has none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: Callable[[], int]) -> None:
        self._loop = loop
        self._limit = limit
        self._waiting: list[tuple[float, int, WaitingRequest]] = []
        self._entered = 0
        self._offers = False
        self.used = 0

    def take(self) -> None:
        """Count a request that goes to a worker. Ask whether a permit is `free` before one looks for a worker."""
        self.used += 1

    def give_back(self) -> None:
        self.used -= 1
        self._offer_soon()

    def enter(self, request: WaitingRequest, arrived_s: float) -> None:
        self._entered += 1
        insort(self._waiting, (arrived_s, self._entered, request))

    def leave(self, request: WaitingRequest) -> None:
        self._waiting = [one for one in self._waiting if one[2] is not request]

    @property
    def free(self) -> bool:
        return self.used < max(1, self._limit())

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _offer_soon(self) -> None:
        if self._waiting and not self._offers:
            self._offers = True
            self._loop.call_soon(self._offer)

    def _offer(self) -> None:
        self._offers = False
        while self._waiting and self.free:
            request = self._waiting[0][2]
            request.offer()
            self.leave(request)

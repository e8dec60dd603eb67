"""Closed and open loops of requests that do not stream."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from loadtest.bench.caller import Caller, Tally, connect
from loadtest.load.pacer import Pacer

DRAIN_S = 30.0


class Loop(ABC):
    """Connections to one proxy, the requests to send and their results. A subclass decides when to send."""

    def __init__(self, url: str, requests: Iterator[bytes]) -> None:
        self.tally = Tally()
        self._url = url
        self._requests = requests
        self._busy = 0
        self._callers: set[Caller] = set()
        self._dialling: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    async def drain(self) -> None:
        """Wait for the answers in progress and close. An unanswered request counts as an error."""
        try:
            async with asyncio.timeout(DRAIN_S):
                while self._busy:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self.tally.fail(f"{self._busy} requests without an answer after {DRAIN_S:.0f} s")
        for caller in self._callers:
            caller.close()

    def _send(self, caller: Caller | None = None) -> None:
        """Send the next request, if there is one, on this connection or on a new one."""
        if (request := next(self._requests, None)) is None:
            return
        self._busy += 1
        if caller is not None and caller.open:
            caller.send(request)
        else:
            task = asyncio.ensure_future(self._dial(request))
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)

    async def _dial(self, request: bytes) -> None:
        try:
            caller = await connect(self._url, self.tally, self._answered)
        except OSError as error:
            self.tally.fail(f"no connection: {error}")
            self._end_one()
            return
        self._callers.add(caller)
        caller.send(request)

    def _answered(self, caller: Caller) -> None:
        if not caller.open:
            self._callers.discard(caller)
        self._on_answer(caller)
        self._end_one()

    def _end_one(self) -> None:
        self._busy -= 1
        if not self._busy:
            self._changed.set()

    @abstractmethod
    def _on_answer(self, caller: Caller) -> None: ...


class ClosedLoop(Loop):
    """Closed loop: each client sends its next request after the answer to its last one."""

    _running = True

    def start(self, connections: int) -> None:
        """Send the first request of each connection."""
        for _ in range(connections):
            self._send()

    async def stop(self) -> None:
        """Send no further requests, then `drain`."""
        self._running = False
        await self.drain()

    def _on_answer(self, caller: Caller) -> None:
        if self._running:
            self._send(caller)


class OpenLoop(Loop):
    """Poisson arrivals, independent of the answers. An arrival that finds no free connection opens another."""

    def __init__(self, url: str, requests: Iterator[bytes]) -> None:
        super().__init__(url, requests)
        self._idle: list[Caller] = []

    async def run(self, rate: float, window_s: float, seed: int) -> None:
        """Send `rate` requests per second for `window_s`. Requests of the first tenth are not timed."""
        rng = random.Random(seed)
        gaps_s = (rng.expovariate(rate) for _ in itertools.count())
        pacer = Pacer(self._arrive, itertools.accumulate(gaps_s, initial=time.monotonic()))
        try:
            await asyncio.sleep(window_s * 0.1)
            self.tally.first_byte_s.clear()
            await asyncio.sleep(window_s * 0.9)
        finally:
            pacer.stop()
        await self.drain()

    def _arrive(self, due_s: float) -> None:
        while self._idle and not self._idle[-1].open:
            self._idle.pop()
        self._send(self._idle.pop() if self._idle else None)

    def _on_answer(self, caller: Caller) -> None:
        if caller.open:
            self._idle.append(caller)


async def send_each_once(url: str, requests: Sequence[bytes], connections: int) -> Tally:
    """Send each request once over `connections` connections, so that the stand-in knows every prompt."""
    loop = ClosedLoop(url, iter(requests))
    loop.start(connections)
    await loop.drain()
    return loop.tally

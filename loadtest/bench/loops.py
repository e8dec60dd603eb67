"""Closed and open loops of requests that do not stream."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator, Sequence

from loadtest.bench.caller import Caller, Tally, connect
from loadtest.bench.pacer import Pacer

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
                while self._busy or self._dialling:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self.tally.fail(f"{self._busy} requests without an answer after {DRAIN_S:.0f} s")
        for caller in self._callers:
            caller.close()

    async def _dial(self) -> Caller | None:
        try:
            caller = await connect(self._url, self.tally, self._answered)
        except OSError as error:
            self.tally.fail(f"no connection: {error}")
            return None
        self._callers.add(caller)
        return caller

    async def _dial_and_send(self) -> None:
        if caller := await self._dial():
            self._send(caller)

    def _send_on_new(self) -> None:
        self._later(self._dial_and_send())

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._dialling.add(task)
        task.add_done_callback(self._dialled)

    def _dialled(self, task: asyncio.Task[None]) -> None:
        self._dialling.discard(task)
        self._changed.set()

    def _send(self, caller: Caller) -> None:
        if (request := next(self._requests, None)) is not None:
            self._busy += 1
            caller.send(request)

    def _answered(self, caller: Caller) -> None:
        self._busy -= 1
        if not caller.open:
            self._callers.discard(caller)
        self._on_answer(caller)
        if not self._busy:
            self._changed.set()

    @abstractmethod
    def _on_answer(self, caller: Caller) -> None: ...


class ClosedLoop(Loop):
    """Closed loop: each client sends its next request after the answer to its last one."""

    def __init__(self, url: str, requests: Iterator[bytes]) -> None:
        super().__init__(url, requests)
        self._running = True

    async def start(self, connections: int) -> None:
        """Connect and send the first requests."""
        await asyncio.gather(*(self._dial_and_send() for _ in range(connections)))

    async def stop(self) -> None:
        """Send no further requests, then `drain`."""
        self._running = False
        await self.drain()

    def _on_answer(self, caller: Caller) -> None:
        if not self._running:
            return
        if caller.open:
            self._send(caller)
        else:
            self._send_on_new()


class OpenLoop(Loop):
    """Poisson arrivals, independent of the answers. An arrival that finds no free connection opens another."""

    def __init__(self, url: str, requests: Iterator[bytes]) -> None:
        super().__init__(url, requests)
        self._idle: list[Caller] = []

    async def run(self, rate: float, window_s: float, connections: int, seed: int) -> None:
        """Send `rate` requests per second for `window_s`. Requests of the first tenth are not timed."""
        callers = await asyncio.gather(*(self._dial() for _ in range(connections)))
        self._idle += [caller for caller in callers if caller is not None]
        rng = random.Random(seed)
        gaps_s = (rng.expovariate(rate) for _ in itertools.count())
        with Pacer(self._arrive, gaps_s, time.monotonic()):
            await asyncio.sleep(window_s * 0.1)
            self.tally.first_byte_s.clear()
            await asyncio.sleep(window_s * 0.9)
        await self.drain()

    def _arrive(self) -> None:
        while self._idle:
            if (caller := self._idle.pop()).open:
                self._send(caller)
                return
        self._send_on_new()

    def _on_answer(self, caller: Caller) -> None:
        if caller.open:
            self._idle.append(caller)


async def send_each_once(url: str, requests: Sequence[bytes], connections: int) -> Tally:
    """Send each request once over `connections` connections, so that the stand-in knows every prompt."""
    loop = ClosedLoop(url, iter(requests))
    await loop.start(min(connections, len(requests)))
    await loop.drain()
    return loop.tally

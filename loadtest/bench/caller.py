"""Clients of answers that are not streamed: `loadtest.load`'s connections, without its reading of each token.

They use little CPU, because they share the machine with the proxy. Each answer is read to its end and checked: status
200, framed as announced, and the stand-in's whole text.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from loadtest.bench.frames import TEXT
from loadtest.load.http import Client
from loadtest.load.pacer import Pacer

DRAIN_S = 30.0
_TEXT = TEXT.encode()


@dataclass(slots=True)
class Failures:
    """The number of failed requests, and some of their reasons."""

    errors: int = 0
    reasons: list[str] = field(default_factory=list)

    def fail(self, reason: str) -> None:
        self.errors += 1
        if len(self.reasons) < 5:
            self.reasons.append(reason)


@dataclass(slots=True)
class Tally(Failures):
    """Results of the requests. `first_byte_s` counts from sending the request to the first body byte."""

    good: int = 0
    first_byte_s: list[float] = field(default_factory=list)


class _Answer:
    """The sink of one answer; `ended` is done when it has been counted."""

    __slots__ = ("_parts", "_sent_s", "_status", "_tally", "ended")

    def __init__(self, tally: Tally) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tally = tally
        self._sent_s = time.monotonic()
        self._status = 0
        self._parts: list[bytes] = []

    def on_head(self, status: int, headers: dict[str, str], transport: asyncio.Transport) -> None:
        self._status = status

    def on_part(self, now_s: float, data: bytes) -> None:
        if not self._parts:
            self._tally.first_byte_s.append(now_s - self._sent_s)
        self._parts.append(data)

    def on_end(self, error: BaseException | None) -> None:
        body = b"".join(self._parts)
        if error is None and self._status == 200 and _TEXT in body:
            self._tally.good += 1
        else:
            self._tally.fail(problem(error, self._status, body) or f"the answer's text is not whole: {_words(body)}")
        if not self.ended.done():
            self.ended.set_result(None)


def problem(error: BaseException | None, status: int, body: bytes) -> str:
    """Return why a response is no answer, or ""."""
    if error is not None:
        return f"{type(error).__name__}: {error}"
    return f"{status}: {_words(body)}" if status != 200 else ""


def _words(body: bytes) -> str:
    return body[:200].decode("utf-8", "replace")


async def ask(client: Client, request: bytes, tally: Tally) -> bool:
    """Send one request and wait for its answer; return False if there is no connection."""
    try:
        async with client.lent() as connection:
            answer = _Answer(tally)
            connection.send(request, answer)
            await answer.ended
    except OSError as error:
        tally.fail(f"no connection: {error}")
        return False
    return True


class ClosedLoop:
    """Each of the clients sends its next request after the answer to its last one, until there is none."""

    def __init__(self, url: str, requests: Iterator[bytes], connections: int) -> None:
        self.tally = Tally()
        self._client = Client(url)
        self._requests = requests
        self._running = True
        self._tasks = {asyncio.create_task(self._run()) for _ in range(connections)}

    async def _run(self) -> None:
        while self._running and (request := next(self._requests, None)) is not None:
            if not await ask(self._client, request, self.tally):
                return

    async def stop(self) -> None:
        """Send no further requests, then `drain`."""
        self._running = False
        await self.drain()

    async def drain(self) -> None:
        await drain(self._client, self._tasks, self.tally)


async def drain(client: Client, tasks: set[asyncio.Task[None]] | set[asyncio.Task[bool]], tally: Tally) -> None:
    """Wait for the answers in progress and close. An unanswered request counts as an error."""
    _, late = await asyncio.wait(tasks, timeout=DRAIN_S) if tasks else ((), ())
    for task in late:
        task.cancel()
    if late:
        tally.fail(f"{len(late)} requests without an answer after {DRAIN_S:.0f} s")
    client.close()


async def send_each_once(url: str, requests: Sequence[bytes], connections: int) -> Tally:
    """Send each request once over `connections` connections, so that the stand-in knows every prompt."""
    loop = ClosedLoop(url, iter(requests), connections)
    await loop.drain()
    return loop.tally


async def open_loop(url: str, requests: Iterator[bytes], rate: float, window_s: float, seed: int) -> Tally:
    """Send `rate` requests per second for `window_s`: Poisson arrivals, independent of the answers.

    Requests of the first tenth are not timed. An arrival that finds no free connection opens another.
    """
    rng, tally, client = random.Random(seed), Tally(), Client(url)
    tasks: set[asyncio.Task[bool]] = set()

    def arrive(due_s: float) -> None:
        task = asyncio.create_task(ask(client, next(requests), tally))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    gaps_s = (rng.expovariate(rate) for _ in itertools.count())
    pacer = Pacer(arrive, itertools.accumulate(gaps_s, initial=time.monotonic()))
    try:
        await asyncio.sleep(window_s * 0.1)
        tally.first_byte_s.clear()
        await asyncio.sleep(window_s * 0.9)
    finally:
        pacer.stop()
    await drain(client, set(tasks), tally)
    return tally

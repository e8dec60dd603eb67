"""Clients of streamed answers, which count tokens on arrival and check that each stream ends correctly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from loadtest.bench.caller import Failures, problem
from loadtest.bench.frames import DONE, TOKEN_MARK
from loadtest.load.http import Client

START_LIMIT_S = 60.0
END_LIMIT_S = 60.0
_AT_ONCE = 64
"""Number of streams that are opened at the same time."""


@dataclass(slots=True)
class StreamTally(Failures):
    """Tokens so far, and the number of streams that have begun and that ended correctly."""

    tokens: int = 0
    begun: int = 0
    ended: int = 0


class Stream:
    """The sink of one stream. Its tokens are counted by their mark, since decoding them would cost too much."""

    def __init__(self, tally: StreamTally) -> None:
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._tally = tally
        self._status = 0
        self._done = self._chunked = False
        self._tail = self._refusal = b""
        self._read_s = self._longest_s = 0.0

    def watch(self) -> None:
        """Begin to note the longest gap between two reads."""
        self._read_s, self._longest_s = time.monotonic(), 0.0

    def longest_gap_s(self) -> float:
        """Return the longest gap since `watch`, the one that lasts still included."""
        return max(self._longest_s, time.monotonic() - self._read_s)

    def on_head(self, status: int, headers: dict[str, str], transport: asyncio.Transport) -> None:
        self._status, self._chunked = status, "transfer-encoding" in headers

    def on_part(self, now_s: float, data: bytes) -> None:
        self._longest_s, self._read_s = max(self._longest_s, now_s - self._read_s), now_s
        if self._status != 200:
            self._refusal += data
            return
        if not self._tail:
            self._tally.begun += 1
            self.begun.set_result(None)
        data = self._tail + data
        self._tally.tokens += data.count(TOKEN_MARK)
        if DONE in data:
            self._done = True
        # What a read has cut in two is counted with the next piece. The tail is shorter than a mark.
        self._tail = data[1 - len(TOKEN_MARK) :]

    def on_end(self, error: BaseException | None) -> None:
        # A stream may be framed by the end of its connection.
        wrong = "" if self._done and not self._chunked else problem(error, self._status, self._refusal)
        if wrong or not self._done:
            self._tally.fail(wrong or "the stream ended without [DONE]")
        else:
            self._tally.ended += 1
        for future in (self.begun, self.ended):
            if not future.done():
                future.set_result(None)


class Streams:
    """Many streams through one proxy. Requests sent directly to the stand-in hold, release and end them."""

    def __init__(self, url: str, standin_url: str) -> None:
        self.tally = StreamTally()
        self.streams: list[Stream] = []
        self._client = Client(url)
        self._tasks: list[asyncio.Task[None]] = []
        self._standin = httpx.Client(base_url=standin_url, timeout=30)
        self._sent_before = 0

    async def begin(self, count: int, requests: Sequence[bytes]) -> None:
        """Request `count` streams, wait for the first event of all of them, then release them."""
        self.streams = [Stream(self.tally) for _ in range(count)]
        self._sent_before = self._order("hold")
        gate = asyncio.Semaphore(_AT_ONCE)

        async def begun(stream: Stream, request: bytes) -> None:
            async with gate:
                self._tasks.append(asyncio.create_task(self._play(stream, request)))
                await stream.begun

        try:
            async with asyncio.timeout(START_LIMIT_S):
                await asyncio.gather(
                    *(begun(stream, requests[place % len(requests)]) for place, stream in enumerate(self.streams))
                )
        except TimeoutError:
            self.tally.fail(f"{self.tally.begun} of {count} streams had begun after {START_LIMIT_S:.0f} s")
        self._order("go")

    async def _play(self, stream: Stream, request: bytes) -> None:
        try:
            async with self._client.lent() as connection:
                connection.send(request, stream)
                await stream.ended
        except OSError as error:
            stream.on_end(error)

    async def finish(self) -> None:
        """End all streams correctly, and check that every token sent has arrived."""
        self._order("finish")
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_LIMIT_S)
        sent = self._order("sent") - self._sent_before
        if self.tally.ended < len(self._tasks) and not self.tally.errors:
            self.tally.fail(f"{self.tally.ended} of {len(self._tasks)} streams had ended after {END_LIMIT_S:.0f} s")
        if sent != self.tally.tokens:
            self.tally.fail(f"{sent} tokens were sent, {self.tally.tokens} came through")
        for task in self._tasks:
            task.cancel()
        self._client.close()
        self._standin.close()

    def _order(self, word: str) -> int:
        return int(self._standin.get(f"/standin/{word}").json()["sent"])

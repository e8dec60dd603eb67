"""Clients of streamed answers, which count tokens on arrival and check that each stream ends correctly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import httpx

from loadtest.bench.bodies import address
from loadtest.bench.caller import Connection, Failures
from loadtest.bench.frames import DONE, TOKEN_MARK

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
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, error: str) -> None:
        """Count one stream that has ended, correctly if there is no `error`."""
        if error:
            self.fail(error)
        else:
            self.ended += 1
        self.changed.set()


class StreamClient(Connection):
    """One connection that carries one stream."""

    def __init__(self, tally: StreamTally) -> None:
        super().__init__()
        self._tally = tally
        self._tail = b""
        self._good = self._done = self._chunked = False
        self._read_s = self._longest_s = 0.0
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def watch(self) -> None:
        """Begin to note the longest gap between two reads."""
        self._read_s, self._longest_s = time.perf_counter(), 0.0

    def longest_gap_s(self) -> float:
        """Return the longest gap since `watch`, the one that lasts still included."""
        return max(self._longest_s, time.perf_counter() - self._read_s)

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        self._longest_s, self._read_s = max(self._longest_s, now_s - self._read_s), now_s
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._good = self._parser.get_status_code() == 200

    def on_body(self, body: bytes) -> None:
        if not self._good:
            self._parts.append(body)
            return
        if not self._tail:
            self._tally.begun += 1
            self.begun.set_result(None)
        data = self._tail + body
        self._tally.tokens += data.count(TOKEN_MARK)
        if DONE in data:
            self._done = True
        # What a read has cut in two is counted with the next piece. The tail is shorter than a mark.
        self._tail = data[1 - len(TOKEN_MARK) :]

    def problem(self, body: bytes) -> str:
        return "" if self._done else "the stream ended without [DONE]"

    def connection_lost(self, exc: Exception | None) -> None:
        # A stream may be framed by the end of its connection.
        if self._done and not self._chunked:
            self.end("")
        super().connection_lost(exc)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._chunked = self._chunked or name.lower() == b"transfer-encoding"

    def ended(self, error: str) -> None:
        self._tally.end(error)
        if not self.begun.done():
            self.begun.set_result(None)


class Streams:
    """Many streams through one proxy. Requests sent directly to the stand-in hold, release and end them."""

    def __init__(self, url: str, standin_url: str) -> None:
        self.tally = StreamTally()
        self.clients: list[StreamClient] = []
        self._address = address(url)
        self._standin = httpx.Client(base_url=standin_url, timeout=30)
        self._sent_before = 0

    async def begin(self, count: int, requests: Sequence[bytes]) -> None:
        """Connect and request `count` streams, wait for the first event of all of them, then release them."""
        for first in range(0, count, _AT_ONCE):
            await asyncio.gather(*(self._connect() for _ in range(first, min(count, first + _AT_ONCE))))
        self._sent_before = self._order("hold")
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(client: StreamClient, request: bytes) -> None:
            async with gate:
                client.send(request)
                await client.begun

        pairs = [(client, requests[place % len(requests)]) for place, client in enumerate(self.clients)]
        try:
            async with asyncio.timeout(START_LIMIT_S):
                await asyncio.gather(*(one(*pair) for pair in pairs))
        except TimeoutError:
            self.tally.fail(f"{self.tally.begun} of {len(pairs)} streams had begun after {START_LIMIT_S:.0f} s")
        self._order("go")

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, client = await loop.create_connection(lambda: StreamClient(self.tally), *self._address)
        except OSError as error:
            self.tally.fail(f"no connection: {error}")
            return
        self.clients.append(client)

    async def finish(self) -> None:
        """End all streams correctly, and check that every token sent has arrived."""
        self._order("finish")
        with suppress(TimeoutError):
            async with asyncio.timeout(END_LIMIT_S):
                while self.tally.ended + self.tally.errors < len(self.clients):
                    self.tally.changed.clear()
                    await self.tally.changed.wait()
        sent = self._order("sent") - self._sent_before
        if self.tally.ended < len(self.clients) and not self.tally.errors:
            self.tally.fail(f"{self.tally.ended} of {len(self.clients)} streams had ended after {END_LIMIT_S:.0f} s")
        if sent != self.tally.tokens:
            self.tally.fail(f"{sent} tokens were sent, {self.tally.tokens} came through")
        for client in self.clients:
            client.close()
        self._standin.close()

    def _order(self, word: str) -> int:
        return int(self._standin.get(f"/standin/{word}").json()["sent"])

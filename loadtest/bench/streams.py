"""Clients of streamed answers, which count tokens on arrival and check that each stream ends correctly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import httpx

from loadtest.bench.bodies import address
from loadtest.bench.caller import Failures
from loadtest.bench.frames import DONE, TOKEN_MARK

START_LIMIT_S = 60.0
END_LIMIT_S = 60.0
_AT_ONCE = 64
"""Number of streams that are opened at the same time."""
_LAST_CHUNK = b"\r\n0\r\n\r\n"


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


class StreamClient(asyncio.Protocol):
    """One connection that carries one stream."""

    def __init__(self, tally: StreamTally) -> None:
        self._tally = tally
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._rest = b""
        self._tail = b""
        self._done = False
        self._ended = False
        self._read_s = self._longest_s = 0.0
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self._transport.write(request)

    def close(self) -> None:
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    def watch(self) -> None:
        """Begin to note the longest gap between two reads."""
        self._read_s, self._longest_s = time.perf_counter(), 0.0

    def longest_gap_s(self) -> float:
        """Return the longest gap since `watch`, the one that lasts still included."""
        return max(self._longest_s, time.perf_counter() - self._read_s)

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        self._longest_s, self._read_s = max(self._longest_s, now_s - self._read_s), now_s
        if not self.begun.done():
            data = self._begin(data)
        if self._rest:
            data = self._rest + data
            self._rest = b""
        if not data.endswith(b"\n"):
            # Events and chunk sizes end with a line feed. A piece without one was cut by a read that filled the buffer.
            cut = data.rfind(b"\n") + 1
            data, self._rest = data[:cut], data[cut:]
        self._take(data)

    def _take(self, data: bytes) -> None:
        self._tally.tokens += data.count(TOKEN_MARK)
        end = data if len(data) >= len(_LAST_CHUNK) else self._tail + data
        self._tail = end[-len(_LAST_CHUNK) :]
        if DONE in data:
            self._done = True
        if self._tail == _LAST_CHUNK:
            said = data[-300:].decode("utf-8", "replace")
            self._end("" if self._done else f"the stream ended without [DONE]: {said}")

    def _begin(self, data: bytes) -> bytes:
        """Return the body so far once its first event has begun to arrive, and b"" before."""
        self._head += data
        head, end, body = self._head.partition(b"\r\n\r\n")
        if end and head[9:12] != b"200":
            self._end(f"{head[:40].decode('latin-1').splitlines()[0]}: {body[:200].decode('utf-8', 'replace')}")
        elif b"data:" in body:
            self._tally.begun += 1
            self.begun.set_result(None)
            return body
        return b""

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        closed_after_done = self._done and b"chunked" not in self._head.lower()
        self._end("" if closed_after_done else f"connection lost in the stream ({exc or 'closed'})")

    def _end(self, error: str) -> None:
        if self._ended:
            return
        self._ended = True
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

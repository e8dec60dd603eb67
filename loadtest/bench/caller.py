"""Clients that request answers without streaming. They use little CPU, because they share the machine with the proxy.

Each answer is read to its end and checked: status 200, framed as announced, and the stand-in's whole text.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import httptools

from loadtest.bench.bodies import address
from loadtest.bench.frames import TEXT

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


class Caller(asyncio.Protocol):
    """One keep-alive connection, which carries one request at a time.

    `on_free` is called after each request, answered or failed.
    """

    def __init__(self, tally: Tally, on_free: Callable[[Caller], None]) -> None:
        self._tally = tally
        self._on_free = on_free
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._busy = False
        self._sent_s = 0.0
        self._parts: list[bytes] = []

    @property
    def open(self) -> bool:
        """Whether the connection can carry another request."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes) -> None:
        """Send a whole request. The previous one must have ended."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._parts = []
        self._busy = True
        self._sent_s = time.perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end(f"connection lost before the answer's end ({exc or 'closed'})")

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.close()
            self._end(f"{type(error).__name__}: {error}")

    def on_body(self, body: bytes) -> None:
        if not self._parts:
            self._tally.first_byte_s.append(time.perf_counter() - self._sent_s)
        self._parts.append(body)

    def on_message_complete(self) -> None:
        body, status = b"".join(self._parts), self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self.close()
        if status != 200:
            self._end(f"{status}: {body[:200].decode('utf-8', 'replace')}")
        elif _TEXT not in body:
            self._end(f"the answer's text is not whole: {body[:200].decode('utf-8', 'replace')}")
        else:
            self._end("")

    def _end(self, error: str) -> None:
        """Count the request, if one was in progress."""
        if not self._busy:
            return
        self._busy = False
        if error:
            self._tally.fail(error)
        else:
            self._tally.good += 1
        self._on_free(self)


async def connect(url: str, tally: Tally, on_free: Callable[[Caller], None]) -> Caller:
    """Open a connection to the base URL `url`."""
    loop = asyncio.get_running_loop()
    _, caller = await loop.create_connection(lambda: Caller(tally, on_free), *address(url))
    return caller


class OneByOne:
    """A connection on which each request waits for the answer to the one before."""

    def __init__(self, url: str, tally: Tally) -> None:
        self._url = url
        self._tally = tally
        self._caller: Caller | None = None
        self._answered = asyncio.Event()

    async def ask(self, request: bytes) -> None:
        """Send one request and wait for its answer."""
        if self._caller is None or not self._caller.open:
            self._caller = await connect(self._url, self._tally, lambda caller: self._answered.set())
        self._answered.clear()
        self._caller.send(request)
        await self._answered.wait()

    def close(self) -> None:
        if self._caller is not None:
            self._caller.close()

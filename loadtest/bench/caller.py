"""Clients that request answers without streaming. They use little CPU, because they share the machine with the proxy.

Each answer is read to its end and checked: status 200, framed as announced, and the stand-in's whole text.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
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


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time. Subclasses have the other callbacks of httptools."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._busy = False
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
        self._transport.write(request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.end(f"connection lost before the answer's end ({exc or 'closed'})")

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.close()
            self.end(f"{type(error).__name__}: {error}")

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self.close()
        said = b"".join(self._parts)
        self.end(f"{status}: {said[:200].decode('utf-8', 'replace')}" if status != 200 else self.problem(said))

    def end(self, error: str) -> None:
        """Count the request, if one was in progress, as failed if there is an `error`."""
        if self._busy:
            self._busy = False
            self.ended(error)

    @abstractmethod
    def problem(self, body: bytes) -> str:
        """Return what is wrong with the body of an answer with status 200, or "" if it is right."""

    @abstractmethod
    def ended(self, error: str) -> None:
        """Count the request."""


class Caller(Connection):
    """One keep-alive connection. `on_free` is called after each request, answered or failed."""

    def __init__(self, tally: Tally, on_free: Callable[[Caller], None]) -> None:
        super().__init__()
        self._tally = tally
        self._on_free = on_free
        self._sent_s = 0.0

    def send(self, request: bytes) -> None:
        super().send(request)
        self._sent_s = time.perf_counter()

    def on_body(self, body: bytes) -> None:
        if not self._parts:
            self._tally.first_byte_s.append(time.perf_counter() - self._sent_s)
        self._parts.append(body)

    def problem(self, body: bytes) -> str:
        return "" if _TEXT in body else f"the answer's text is not whole: {body[:200].decode('utf-8', 'replace')}"

    def ended(self, error: str) -> None:
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

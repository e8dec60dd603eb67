"""One HTTP/1.1 connection to a worker for control calls, whose answers are bounded in size.

llhttp reads the answer. Head, interim answers (1xx), trailers and chunk framing are bounded as well as the body, so
that a worker can neither fill memory nor keep the event loop busy beyond the bytes that were allowed to it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import httptools

MAX_HEAD_BYTES = 65_536
"""An answer's head, together with the interim answers before it. Also what framing may add to a body."""


class BrokenAnswer(Exception):
    """No whole answer came. `unsent`: not a byte of one, so that a kept connection had been closed by the worker."""

    def __init__(self, reason: str, *, unsent: bool = False) -> None:
        super().__init__(reason)
        self.unsent = unsent


class LargeAnswer(Exception):
    """The answer's body is larger than was allowed."""


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """A worker's answer. Only a 200 has its body, and only if it is not compressed. Header names are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes = b""

    def header(self, name: bytes) -> str:
        """A header's value, "" where there is none."""
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def compressed(self) -> bool:
        """Whether the body has a content coding."""
        return self.header(b"content-encoding") not in ("", "identity")


class Connection(asyncio.Protocol):
    """Carries one request at a time. It also takes llhttp's callbacks."""

    def __init__(self) -> None:
        self.reusable = False
        """Another request can be sent: the last answer ended where its framing said."""
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[WorkerAnswer] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._status = self._wire_bytes = self._body_bytes = self._max_bytes = 0
        self._final = self._complete = self._behind = False
        self._begin(0)

    async def ask(self, request: bytes, max_bytes: int) -> WorkerAnswer:
        """Send `request` and wait for the answer. The caller limits the time; it closes the connection if not reusable.

        Raises:
            BrokenAnswer: the worker closed the connection, or does not speak HTTP/1.1.
            LargeAnswer: the body has more than `max_bytes`.
        """
        assert self._transport is not None and self._waiter is None
        self._begin(max_bytes)
        if self._transport.is_closing():
            raise BrokenAnswer("the connection was closed", unsent=True)
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def rest(self, limit_s: float) -> None:
        """Stay open for `limit_s` more; `wake` ends that."""
        self._expiry = asyncio.get_running_loop().call_later(limit_s, self.close)

    def wake(self) -> None:
        """Have it stay open without a limit again."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    @property
    def alive(self) -> bool:
        """The connection is open."""
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Close at once."""
        self.wake()
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Up."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Read a piece of the answer."""
        if self._waiter is None or self._waiter.done():
            self.close()  # nobody asked
            return
        self._wire_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._behind = True
            if not self._complete:
                self._fail(BrokenAnswer(f"not HTTP/1.1 ({error or type(error).__name__})"))
                return
        self._judge()

    def eof_received(self) -> None:
        """The worker closed its side: that ends a body without a length."""
        if self._final and not {b"content-length", b"transfer-encoding"} & self._headers.keys():
            self._behind = self._complete = True
            self._judge()

    def connection_lost(self, exc: Exception | None) -> None:
        """Down."""
        reason = str(exc) if exc else "the connection was closed"
        self._fail(BrokenAnswer(reason, unsent=not self._wire_bytes))

    # llhttp

    def on_message_begin(self) -> None:
        """An answer begins, interim ones included."""
        self._behind = self._complete
        if not self._complete:
            self._headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; trailers are not kept."""
        if not self._final:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """A head ended. 101 would switch to another protocol, which nobody asked for."""
        status = self._parser.get_status_code()
        if not self._final and (status >= 200 or status == 101):
            self._final, self._status = True, status

    def on_body(self, data: bytes) -> None:
        """Content."""
        if self._complete:
            return
        self._body_bytes += len(data)
        if self._body_bytes <= self._max_bytes:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        """An answer ended."""
        self._complete = self._final

    # within

    def _begin(self, max_bytes: int) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self._max_bytes = max_bytes
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._status = self._wire_bytes = self._body_bytes = 0
        self._final = self._complete = self._behind = self.reusable = False

    def _judge(self) -> None:
        """After each piece: is the answer whole, or too large?"""
        framing_bytes = self._wire_bytes - self._body_bytes
        if not self._final:
            if framing_bytes > MAX_HEAD_BYTES:
                self._fail(BrokenAnswer(f"a head of more than {MAX_HEAD_BYTES} bytes"))
            return
        answer = WorkerAnswer(self._status, self._headers)
        if answer.status != 200 or answer.compressed:
            self._succeed(answer)
        elif max(self._body_bytes, self._announced_bytes()) > self._max_bytes:
            self._fail(LargeAnswer())
        elif self._complete:
            self._succeed(WorkerAnswer(self._status, self._headers, b"".join(self._pieces)))
        elif framing_bytes > MAX_HEAD_BYTES + self._body_bytes:
            self._fail(BrokenAnswer("more framing than content"))

    def _announced_bytes(self) -> int:
        length = self._headers.get(b"content-length", b"0")
        return int(length) if length.isdigit() and len(length) < 20 else 0

    def _succeed(self, answer: WorkerAnswer) -> None:
        self.reusable = self._complete and not self._behind and bool(self._parser.should_keep_alive())
        self._pieces = []
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(answer)

    def _fail(self, error: Exception) -> None:
        self.close()
        self._pieces = []  # this object and its parser hold each other until the garbage collector comes by
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

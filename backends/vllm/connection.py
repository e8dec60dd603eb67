"""One HTTP/1.1 connection to a worker for control calls, with bounded answers.

llhttp reads the answer. Head, interim answers (1xx), trailers, chunk framing and body are bounded. So a worker cannot
fill memory or occupy the event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import httptools

MAX_HEAD_BYTES = 65_536
"""Largest head of an answer, including the interim answers before it. The framing of a body may also take up to this
size.
"""


class BrokenAnswer(Exception):
    """The answer is incomplete. `unsent`: not one byte arrived, so the worker had closed a kept connection."""

    def __init__(self, reason: str, *, unsent: bool = False) -> None:
        super().__init__(reason)
        self.unsent = unsent


class LargeAnswer(Exception):
    """The answer's body is larger than allowed."""


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """A worker's answer. A body that is compressed is left out, and of an error only as much is read as was asked for.
    Header names are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes = b""

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def compressed(self) -> bool:
        return self.header(b"content-encoding") not in ("", "identity")


class Connection(asyncio.Protocol):
    """Carry one request at a time, and receive llhttp's callbacks."""

    def __init__(self) -> None:
        self.reusable = False
        """Whether another request can be sent: the last answer ended at the place that its framing gave."""
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[WorkerAnswer] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._status = self._wire_bytes = self._body_bytes = self._max_bytes = self._error_bytes = 0
        self._final = self._complete = self._behind = False
        self._begin(0, 0)

    async def ask(self, request: bytes, max_bytes: int, error_bytes: int = 0) -> WorkerAnswer:
        """Send `request` and wait for the answer. The caller limits the time, and closes the connection if it is not
        reusable. Of the body of an answer that is no 200, only the first `error_bytes` are read.

        Raises:
            BrokenAnswer: the worker closed the connection, or does not speak HTTP/1.1.
            LargeAnswer: the body has more than `max_bytes`.
        """
        assert self._transport is not None and self._waiter is None
        self._begin(max_bytes, error_bytes)
        if self._transport.is_closing():
            raise BrokenAnswer("the connection was closed", unsent=True)
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def keep_open(self, limit_s: float) -> None:
        """Stay open for another `limit_s`; `wake` removes the limit."""
        self._expiry = asyncio.get_running_loop().call_later(limit_s, self.close)

    def wake(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        self.wake()
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done():
            self.close()  # No request is waiting for it.
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
        """End a body without a length: the worker closed its side."""
        if self._final and not {b"content-length", b"transfer-encoding"} & self._headers.keys():
            self._behind = self._complete = True
            self._judge()

    def connection_lost(self, exc: Exception | None) -> None:
        reason = str(exc) if exc else "the connection was closed"
        self._fail(BrokenAnswer(reason, unsent=not self._wire_bytes))

    # Callbacks of llhttp.

    def on_message_begin(self) -> None:
        self._behind = self._complete
        if not self._complete:
            self._headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._final:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """End a head. A 101 would switch to another protocol, which was not requested."""
        status = self._parser.get_status_code()
        if not self._final and (status >= 200 or status == 101):
            self._final, self._status = True, status

    def on_body(self, data: bytes) -> None:
        if self._complete:
            return
        self._body_bytes += len(data)
        if self._body_bytes <= self._max_bytes:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        self._complete = self._final

    # Internals.

    def _begin(self, max_bytes: int, error_bytes: int) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self._max_bytes = max_bytes
        self._error_bytes = error_bytes
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._status = self._wire_bytes = self._body_bytes = 0
        self._final = self._complete = self._behind = self.reusable = False

    def _judge(self) -> None:
        """Check after each piece whether the answer is complete or too large."""
        framing_bytes = self._wire_bytes - self._body_bytes
        if not self._final:
            if framing_bytes > MAX_HEAD_BYTES:
                self._fail(BrokenAnswer(f"a head of more than {MAX_HEAD_BYTES} bytes"))
            return
        answer = WorkerAnswer(self._status, self._headers)
        much_framing = framing_bytes > MAX_HEAD_BYTES + self._body_bytes
        if answer.compressed:
            self._succeed(answer)
        elif answer.status != 200:
            if self._complete or self._body_bytes >= self._error_bytes or much_framing:
                body = b"".join(self._pieces)[: self._error_bytes]
                self._succeed(WorkerAnswer(self._status, self._headers, body))
        elif max(self._body_bytes, self._announced_bytes()) > self._max_bytes:
            self._fail(LargeAnswer())
        elif self._complete:
            self._succeed(WorkerAnswer(self._status, self._headers, b"".join(self._pieces)))
        elif much_framing:
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
        self._pieces = []  # This object and its parser reference each other until the garbage collector runs.
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

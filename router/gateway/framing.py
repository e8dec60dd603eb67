"""Where one client request ends and the next begins.

A body of announced length is cut out here; llhttp checks heads and unpacks chunked bodies. Each request has its own
parser, so that bytes of a pipelined request are never parsed before its turn.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import httptools

from router.config.model import LimitsConfig
from router.errors import ErrorKind, RequestError
from router.gateway.budget import BodyBudget
from router.gateway.head import RepeatedHead, RequestHead, has_bare_lf, parse_head

_HEAD_END = b"\r\n\r\n"


class Stage(Enum):
    """What the next bytes are."""

    IDLE = 0
    HEAD = 1
    BODY = 2


class _Overrun(Exception):
    """Another request follows in the same bytes."""


class _Chunks:
    """llhttp's callbacks for a chunked body."""

    __slots__ = ("complete", "on_body", "overrun", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append
        self.complete = False
        self.overrun = False

    def on_message_begin(self) -> None:
        if self.complete:
            self.overrun = True
            raise _Overrun  # stops llhttp before it takes the next request's bytes for this one's

    def on_message_complete(self) -> None:
        self.complete = True


class RequestFramer:
    """Fed with bytes, asked for requests. `head_read` is called between a request's head and its body, and may raise.

    `head` is the request being read, or the last one; `last` is set when no request may follow on this connection.
    After a `RequestError` nothing more can be read, unless `skip_refused` says so. Body bytes are taken from `budget`
    as they are read; `give_back` returns them, once the body of the last request is needed no longer.
    """

    def __init__(self, limits: LimitsConfig, budget: BodyBudget, head_read: Callable[[RequestHead], None]) -> None:
        self._max_header_bytes = limits.max_header_bytes
        self._budget = budget
        self._head_read = head_read
        self._pending = b""
        self._scanned = 0
        self._pieces: list[bytes] = []
        self._body_bytes = 0
        self._parser: Any = None
        self._chunks: _Chunks | None = None
        self._repeated = RepeatedHead()
        self.head: RequestHead | None = None
        self.stage = Stage.IDLE
        self.last = False

    @property
    def pending_bytes(self) -> int:
        """Bytes fed and not yet read."""
        return len(self._pending)

    def feed(self, data: bytes) -> None:
        """Bytes from the client."""
        self._pending = self._pending + data if self._pending else data

    def take_pending(self) -> bytes:
        """What was read ahead, when it belongs to no request."""
        pending, self._pending = self._pending, b""
        return pending

    def give_back(self) -> None:
        """The body of the request last read, or being read, is needed no longer."""
        if self._body_bytes:
            self._budget.give_back(self._body_bytes)
            self._body_bytes = 0

    def close(self) -> None:
        """Nothing will be read any more: let go of what has been, and of the way back to the caller. A connection and
        its framer know each other, and would keep half a body until the collector comes by."""
        self.give_back()
        self._pending = b""
        self._pieces = []
        self._parser = self._chunks = None
        self._head_read = _nobody

    def next(self) -> tuple[RequestHead, bytes] | None:
        """The next complete request with its body, or None until more is fed.

        Raises:
            RequestError: the answer to a request that is refused.
        """
        if self.stage is not Stage.BODY and not self._read_head():
            return None
        assert self.head is not None
        body = self._read_chunks() if self.head.chunked else self._read_body(self.head.content_length)
        if body is None:
            return None
        self.stage = Stage.IDLE
        self._parser = self._chunks = None
        return self.head, body

    def skip_refused(self) -> bool:
        """After a refusal: whether the refused request ended with its head, so that the next one can be read."""
        if self.head is None or self.head.has_body or not self.head.keep_alive or self.last:
            return False
        self.stage = Stage.IDLE
        return True

    def _read_head(self) -> bool:
        pending = self._pending
        while pending[:2] == b"\r\n":  # RFC 9112 section 2.2: empty lines before a request line are ignored
            pending = pending[2:]
        self._pending = pending
        if not pending:
            return False
        self.head = None
        self.stage = Stage.HEAD
        end = pending.find(_HEAD_END, max(0, self._scanned - 3))
        if (end if end >= 0 else len(pending)) > self._max_header_bytes - 4:
            raise RequestError(ErrorKind.HEADERS_TOO_LARGE, "request head too large")
        if end < 0:
            if has_bare_lf(pending, self._scanned):
                raise RequestError(ErrorKind.BAD_REQUEST, "line feed without carriage return")
            self._scanned = len(pending)
            return False
        self._scanned = 0
        self._pending = pending[end + 4 :]
        self._begin(pending[: end + 4])
        return True

    def _begin(self, raw: bytes) -> None:
        head = self._repeated.recall(raw)
        chunks = None
        if head is None:
            chunks = self._chunks = _Chunks()
            self._parser = httptools.HttpRequestParser(chunks)
            head = self._repeated.keep(raw, parse_head(raw, self._parser))
        self.head = head
        self.stage = Stage.BODY
        self._pieces = chunks.pieces if chunks is not None and head.chunked else []
        self.give_back()
        if head.content_length:
            self._budget.check(head.content_length)
        self._head_read(head)

    def _read_body(self, length: int) -> bytes | None:
        missing = length - self._body_bytes
        piece = self._pending[:missing]
        self._pending = self._pending[missing:]
        if piece:
            self._take(len(piece))
        if len(piece) == length:
            return piece
        self._pieces.append(piece)
        return self._joined() if self._body_bytes == length else None

    def _read_chunks(self) -> bytes | None:
        chunks = self._chunks
        assert chunks is not None
        seen = len(chunks.pieces)
        try:
            self._parser.feed_data(self.take_pending())
        except httptools.HttpParserError as error:
            if not chunks.complete:
                raise RequestError(ErrorKind.BAD_REQUEST, str(error)) from None
            chunks.overrun = True
        self._take(sum(map(len, chunks.pieces[seen:])))
        if self._body_bytes > self._budget.max_body_bytes:
            self._budget.check(self._body_bytes)
        if not chunks.complete:
            return None
        # where a request behind a chunked one starts is llhttp's secret: it has to come on a new connection
        self.last = chunks.overrun
        return self._joined()

    def _joined(self) -> bytes:
        body = b"".join(self._pieces)
        self._pieces = []
        return body

    def _take(self, size_bytes: int) -> None:
        self._budget.take(size_bytes)
        self._body_bytes += size_bytes


def _nobody(head: RequestHead) -> None:
    """Who is told after the end."""

"""Where one client request ends and the next begins.

A body of announced length is cut out here, a chunked one by `chunks.ChunkedBody`; llhttp checks heads. Each request
has its own parser, so that bytes of a pipelined request are never parsed before its turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from io import BytesIO

import httptools

from router.config.model import LimitsConfig
from router.errors import ErrorKind, RequestError
from router.gateway.http.body_buffer_limit import BodyBufferLimit
from router.gateway.http.chunked_body import ChunkedBody
from router.gateway.http.request_head import RepeatedHead, RequestHead, has_bare_lf, parse_head
from router.security.callers import TenantUsage

_HEAD_END = b"\r\n\r\n"
_NO_CALLBACKS = object()
_EMPTY_LINES = re.compile(rb"(?:\r\n){1,1024}")


class Stage(Enum):
    """What the next bytes are."""

    IDLE = 0
    HEAD = 1
    BODY = 2


class RequestFramer:
    """Fed with bytes, asked for requests. `head_read` is called between a request's head and its body, and may raise.

    `head` is the request being read, or the last one. After a `RequestError` nothing more can be read, unless
    `skip_refused` says so. Body bytes are taken from `budget` as they are read; `give_back` returns them, once the body
    of the last request is needed no longer. They are charged to the tenant that `charge` names, too.
    """

    def __init__(self, limits: LimitsConfig, budget: BodyBufferLimit, head_read: Callable[[RequestHead], None]) -> None:
        self._max_header_bytes = limits.max_header_bytes
        self._budget = budget
        self._head_read = head_read
        self._pending = b""
        self._at = 0
        """Where in `_pending` the bytes begin that are not yet read. Cutting them off for every request of a large
        pipelined read would copy the rest each time."""
        self._scanned = 0
        self._content: BytesIO | None = None
        """A body that comes in several pieces. `getvalue` hands out its buffer without a copy: joining the pieces of a
        body of 64 MiB would take twice its memory, and 30 ms."""
        self._body_bytes = 0
        self._account: TenantUsage | None = None
        self._chunks: ChunkedBody | None = None
        self._repeated = RepeatedHead()
        self.head: RequestHead | None = None
        self.stage = Stage.IDLE

    @property
    def pending_bytes(self) -> int:
        """Bytes fed and not yet read."""
        return len(self._pending) - self._at

    @property
    def stopped(self) -> bool:
        """Whether `next` has to be called again, with nothing more fed: there were too many chunks for one turn."""
        return self._chunks is not None and self._chunks.more

    def feed(self, data: bytes) -> None:
        """Bytes from the client."""
        self._pending = self.take_pending() + data if self._pending else data

    def take_pending(self) -> bytes:
        """The bytes fed and not yet read; the framer no longer has them."""
        pending = self._pending[self._at :] if self._at else self._pending
        self._pending, self._at = b"", 0
        return pending

    def charge(self, account: TenantUsage | None) -> None:
        """The body of the request whose head has just been read is this tenant's.

        Raises:
            RequestError: its announced length is more than the tenant may have in memory.
        """
        self._account = account
        if account is not None and self.head is not None and self.head.content_length:
            account.check(self.head.content_length)

    def give_back(self) -> None:
        """The body of the request last read, or being read, is needed no longer."""
        if self._body_bytes:
            self._budget.give_back(self._body_bytes)
            if self._account is not None:
                self._account.body_bytes -= self._body_bytes
            self._body_bytes = 0

    def close(self) -> None:
        """Nothing will be read any more: let go of what has been, and of the way back to the caller. A connection and
        its framer know each other, and would keep half a body until the collector comes by."""
        self.give_back()
        self.take_pending()
        self._content = None
        self._chunks = None
        self._repeated = RepeatedHead()  # it has the client's key
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
        self._chunks = None
        return self.head, body

    def skip_refused(self) -> bool:
        """After a refusal: whether the refused request ended with its head, so that the next one can be read."""
        if self.head is None or self.head.has_body or not self.head.keep_alive:
            return False
        self.stage = Stage.IDLE
        return True

    def _read_head(self) -> bool:
        pending, at = self._pending, self._at
        if pending.startswith(b"\r\n", at):  # RFC 9112 section 2.2: empty lines before a request line are ignored
            while (lines := _EMPTY_LINES.match(pending, at)) is not None:
                at = lines.end()
            self._at = at
            self._scanned = 0
            self.stage = Stage.IDLE
        if at == len(pending):
            self.take_pending()
            return False
        self.head = None
        self.stage = Stage.HEAD
        end = pending.find(_HEAD_END, at + max(0, self._scanned - 3))
        if (end if end >= 0 else len(pending)) - at > self._max_header_bytes - 4:
            raise RequestError(ErrorKind.HEADERS_TOO_LARGE, "request head too large")
        if end < 0:
            if has_bare_lf(pending[at:], self._scanned):
                raise RequestError(ErrorKind.BAD_REQUEST, "line feed without carriage return")
            self._scanned = len(pending) - at
            return False
        self._scanned = 0
        self._at = end + 4
        self._begin(pending[at : end + 4])
        return True

    def _begin(self, raw: bytes) -> None:
        head = self._repeated.recall(raw)
        if head is None:
            head = self._repeated.keep(raw, parse_head(raw, httptools.HttpRequestParser(_NO_CALLBACKS)))
        self.head = head
        self.stage = Stage.BODY
        self._content = None
        if head.chunked:
            self._chunks = ChunkedBody(self._max_header_bytes)
        self.give_back()
        if head.content_length:
            self._budget.check(head.content_length)
        self._head_read(head)

    def _read_body(self, length: int) -> bytes | None:
        missing = length - self._body_bytes
        piece = self._pending[self._at : self._at + missing]
        self._at += len(piece)
        if self._at == len(self._pending):
            self.take_pending()
        if piece:
            self._take(len(piece))
        if len(piece) == length:
            return piece
        content = self._content
        if content is None:
            content = self._content = BytesIO()
        content.write(piece)
        if self._body_bytes < length:
            return None
        self._content = None
        return content.getvalue()

    def _read_chunks(self) -> bytes | None:
        chunks = self._chunks
        assert chunks is not None
        self._pending = chunks.feed(self.take_pending())
        self._take(chunks.content.tell() - self._body_bytes)
        if self._body_bytes > self._budget.max_body_bytes:
            self._budget.check(self._body_bytes)
        return chunks.content.getvalue() if chunks.complete else None

    def _take(self, size_bytes: int) -> None:
        account = self._account
        if account is not None:
            account.check(size_bytes, self._body_bytes)
        announced_bytes = (self.head.content_length if self.head is not None else None) or 0
        self._budget.take(size_bytes, max(announced_bytes, self._body_bytes + size_bytes))
        if account is not None:
            account.body_bytes += size_bytes
        self._body_bytes += size_bytes


def _nobody(head: RequestHead) -> None:
    """Who is told after the end."""

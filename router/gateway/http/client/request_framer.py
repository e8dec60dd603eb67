"""Splits the bytes of a client connection into requests.

Bodies with a Content-Length are cut here, chunked bodies by `ChunkedBody`; llhttp checks heads. Each request has its
own parser, so that bytes of a pipelined request are never parsed early.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from io import BytesIO
from typing import Final

import httptools

from router.config.model import LimitsConfig
from router.errors import ErrorKind, RequestError
from router.gateway.http.client.chunked_body import ChunkedBody
from router.requests.body_buffer_limit import BodyBufferLimit
from router.requests.request_head import RepeatedHead, RequestHead, has_bare_lf, parse_head
from router.security.callers import TenantUsage

_HEAD_END = b"\r\n\r\n"
_NO_CALLBACKS = object()
_EMPTY_LINES = re.compile(rb"(?:\r\n){1,1024}")


class FramerState(Enum):
    IDLE = 0
    HEAD = 1
    BODY = 2


# Module constants, because looking up a member of an enum is slow.
_IDLE: Final = FramerState.IDLE
_HEAD: Final = FramerState.HEAD
_BODY: Final = FramerState.BODY


class RequestFramer:
    """Takes bytes by `feed` and returns requests by `next`.

    `head_read` is called between a request's head and its body, and may raise. `head` is the request being read, or the
    last one. After a `RequestError` nothing more can be read, unless `skip_refused` returns True. Body bytes count
    against `body_limit` and against the tenant that `charge` sets, until `give_back`.
    """

    def __init__(
        self, limits: LimitsConfig, body_limit: BodyBufferLimit, head_read: Callable[[RequestHead], None]
    ) -> None:
        self._max_header_bytes = limits.max_header_bytes
        self._body_limit = body_limit
        self._head_read = head_read
        self._pending = b""
        self._at = 0
        """Index of the first unread byte in `_pending`. Cutting `_pending` after each request would copy the rest of a
        large pipelined read every time."""
        self._scanned = 0
        self._content: BytesIO | None = None
        """A body that arrives in several pieces. `getvalue` returns its buffer without a copy: joining the pieces of a
        64 MiB body would take twice its memory, and 30 ms."""
        self._body_bytes = 0
        self._account: TenantUsage | None = None
        self._chunks: ChunkedBody | None = None
        self._repeated = RepeatedHead()
        self.head: RequestHead | None = None
        self.state = _IDLE

    @property
    def pending_bytes(self) -> int:
        return len(self._pending) - self._at

    @property
    def stopped(self) -> bool:
        """Whether `next` must be called again without more bytes: too many chunks for one iteration."""
        return self._chunks is not None and self._chunks.more

    def feed(self, data: bytes) -> None:
        self._pending = self.take_pending() + data if self._pending else data

    def take_pending(self) -> bytes:
        pending = self._pending[self._at :] if self._at else self._pending
        self._pending, self._at = b"", 0
        return pending

    def charge(self, account: TenantUsage | None) -> None:
        """Charge the body that follows the last head to a tenant.

        Raises:
            RequestError: the announced length exceeds the tenant's quota.
        """
        self._account = account
        if account is not None and self.head is not None and self.head.content_length:
            account.check(self.head.content_length)

    def give_back(self, kept_bytes: int = 0) -> None:
        """Return the memory of the current body to the limit and to the tenant, but for `kept_bytes` of it."""
        free_bytes = self._body_bytes - kept_bytes
        if free_bytes > 0:
            self._body_limit.give_back(free_bytes)
            if self._account is not None:
                self._account.body_bytes -= free_bytes
            self._body_bytes = kept_bytes

    def close(self) -> None:
        """Drop everything that was read, and the callback. The connection and its framer form a reference cycle, which
        would keep half a body in memory until the garbage collector runs."""
        self.give_back()
        self.take_pending()
        self._content = None
        self._chunks = None
        self._repeated = RepeatedHead()  # it holds the client's API key
        self._head_read = _nobody

    def next(self) -> tuple[RequestHead, bytes] | None:
        """Return the next complete request with its body, or None if bytes are missing.

        Raises:
            RequestError: the request is refused; the error is the answer.
        """
        if self.state is not _BODY and not self._read_head():
            return None
        assert self.head is not None
        body = self._read_chunks() if self.head.chunked else self._read_body(self.head.content_length)
        if body is None:
            return None
        self.state = _IDLE
        self._chunks = None
        return self.head, body

    def skip_refused(self) -> bool:
        """After a refusal, return whether reading can go on: the refused request has no body."""
        if self.head is None or self.head.has_body or not self.head.keep_alive:
            return False
        self.state = _IDLE
        return True

    def _read_head(self) -> bool:
        pending, at = self._pending, self._at
        if pending.startswith(b"\r\n", at):  # RFC 9112 section 2.2: empty lines before a request line are ignored
            while (lines := _EMPTY_LINES.match(pending, at)) is not None:
                at = lines.end()
            self._at = at
            self._scanned = 0
            self.state = _IDLE
        if at == len(pending):
            self.take_pending()
            return False
        self.head = None
        self.state = _HEAD
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
        self.state = _BODY
        self._content = None
        if head.chunked:
            self._chunks = ChunkedBody(self._max_header_bytes)
        self.give_back()
        if head.content_length:
            self._body_limit.check(head.content_length)
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
        if self._body_bytes > self._body_limit.max_body_bytes:
            self._body_limit.check(self._body_bytes)
        return chunks.content.getvalue() if chunks.complete else None

    def _take(self, size_bytes: int) -> None:
        account = self._account
        if account is not None:
            account.check(size_bytes, self._body_bytes)
        announced_bytes = (self.head.content_length if self.head is not None else None) or 0
        self._body_limit.take(size_bytes, max(announced_bytes, self._body_bytes + size_bytes))
        if account is not None:
            account.body_bytes += size_bytes
        self._body_bytes += size_bytes


def _nobody(head: RequestHead) -> None: ...

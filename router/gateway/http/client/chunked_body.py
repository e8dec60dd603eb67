"""A client's chunked body, unpacked as it arrives (RFC 9112 section 7.1).

This parser exists because llhttp does not report where a body ends, and so where the next pipelined request begins. It
accepts the grammar of the RFC only; extensions and trailers are checked and dropped.
"""

from __future__ import annotations

import re
from io import BytesIO

from router.errors import ErrorKind, RequestError

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
# Fifteen hexadecimal digits: more than any body limit, and within 64 bits.
_SIZE = re.compile(
    rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[ \t]*" + _TOKEN + rb"(?:[ \t]*=[ \t]*(?:" + _TOKEN + rb"|" + _QUOTED + rb"))?)*"
)
_PLAIN_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_TRAILER = re.compile(_TOKEN + rb":[\t\x20-\x7e\x80-\xff]*")
CHUNKS_PER_ITERATION = 1_024
"""Chunks read per event-loop iteration. One read carries up to 40,000 chunks of one byte."""
MAX_LINE_BYTES = 1_024
"""Longest size line, with its extensions. No client is known to send more."""


class ChunkedBody:
    """Incremental decoder. `feed` returns the bytes it did not consume: an incomplete line, or bytes after the body.

    One call reads at most `CHUNKS_PER_ITERATION` chunks; `more` is True if unread chunks may be left. `content` is one
    buffer, because many short pieces would take many times their size. The trailer section is limited to
    `max_trailer_bytes`.
    """

    __slots__ = ("_break", "_in_trailers", "_left", "_missing", "_trailer_bytes", "complete", "content", "more")

    def __init__(self, max_trailer_bytes: int) -> None:
        self._trailer_bytes = max_trailer_bytes
        self._missing = 0
        self._break = b""
        """The line break that ends a chunk's content, expected before the next size line."""
        self._in_trailers = False
        self._left = 0
        self.complete = False
        self.more = False
        self.content = BytesIO()

    def feed(self, data: bytes) -> bytes:
        """Consume bytes of the body and return the rest.

        Raises:
            RequestError: the bytes are not a valid chunked body.
        """
        at = 0
        self._left = CHUNKS_PER_ITERATION
        while not self.complete and self._left > 0:
            self._left -= 1
            if self._missing:
                taken = self._content(data, at)
            else:
                at = self._whole_chunks(data, at)
                taken = self._line(data, at)
            if not taken:
                break
            at += taken
        self.more = not self.complete and self._left <= 0
        return data[at:] if at else data

    def _whole_chunks(self, data: bytes, at: int) -> int:
        """Consume complete chunks without extensions, the fast path. Return the index after the last one."""
        if self._in_trailers or not data.startswith(self._break, at):
            return at
        write, size_at = self.content.write, at + len(self._break)
        while self._left > 0 and (found := _PLAIN_SIZE.match(data, size_at)) is not None:
            start = found.end()
            end = start + int(found[1], 16)
            if end == start or data[end : end + 2] != b"\r\n":
                break
            self._left -= 1
            write(data[start:end])
            size_at = at = end + 2
            self._break = b""
        return at

    def _content(self, data: bytes, at: int) -> int:
        piece = data[at : at + self._missing]
        self.content.write(piece)
        self._missing -= len(piece)
        return len(piece)

    def _line(self, data: bytes, at: int) -> int:
        """Read one line. Return its length, or 0 if it is incomplete."""
        skip = len(self._break)
        if not data.startswith(self._break[: len(data) - at], at):
            raise _bad("a chunk's content is not followed by a line break")
        end = data.find(b"\r\n", at + skip)
        length = (end if end >= 0 else len(data) - 1) - at - skip  # a last carriage return may lack its line feed
        if self._in_trailers:
            if length > self._trailer_bytes:
                raise RequestError(ErrorKind.HEADERS_TOO_LARGE, "trailers too large")
        elif length > MAX_LINE_BYTES:
            raise _bad("chunk size line too long")
        if end < 0:
            if b"\n" in data[at + skip :]:
                raise _bad("line feed without carriage return in a chunked body")
            return 0
        if self._in_trailers:
            self._trailer(data[at:end])
        else:
            self._size(data[at + skip : end])
        return end + 2 - at

    def _size(self, line: bytes) -> None:
        found = _SIZE.fullmatch(line)
        if found is None:
            raise _bad("malformed chunk size line")
        self._missing = int(found[1], 16)
        self._in_trailers = not self._missing
        self._break = b"" if self._in_trailers else b"\r\n"

    def _trailer(self, line: bytes) -> None:
        self._trailer_bytes -= len(line) + 2
        if not line:
            self.complete = True
        elif _TRAILER.fullmatch(line) is None:
            raise _bad("malformed trailer")


def _bad(message: str) -> RequestError:
    return RequestError(ErrorKind.BAD_REQUEST, message)

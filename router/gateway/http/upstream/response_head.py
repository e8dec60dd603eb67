"""The head of a worker's response, checked and parsed."""

from __future__ import annotations

import re

import msgspec

from router.requests.request_head import LengthCut, cut, split_lines

HEAD_END = b"\r\n\r\n"
# RFC 9112 section 4. llhttp accepts other versions, control characters in the reason and leading empty lines.
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] [1-9]\d\d(?: [\t\x20-\x7e\x80-\xff]*)?")
# llhttp does not treat a tab as white space here, and would read until the worker closes.
_TABBED_CODING = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked *\t", re.IGNORECASE)


class ResponseHead(msgspec.Struct, frozen=True, gc=False):
    """A worker's final response head.

    `status_line` starts after the version. `length` is None without a Content-Length. `events` marks an event stream
    without content coding, `bodiless` a response that ends with its head. Heads of one worker that differ only in
    Content-Length share `lines`, `fields` and `passed` (see `RepeatedResponse`): for the length, read `length`.
    `passed` caches the head that `headers` wrote for clients.
    """

    status: int
    status_line: bytes
    lines: list[tuple[bytes, bytes]]
    fields: dict[bytes, bytes]
    chunked: bool
    length: int | None
    keep_alive: bool
    events: bool
    bodiless: bool
    passed: dict[bool, tuple[bytes, bytes]] | None = None

    @property
    def until_close(self) -> bool:
        return not (self.chunked or self.bodiless) and self.length is None


class RepeatedResponse:
    """A cache of one: the last head of a worker's answers with a Content-Length.

    Workers repeat their heads, apart from Content-Length, until the second in `Date` changes.
    """

    __slots__ = ("_cut", "_head")

    def __init__(self) -> None:
        self._head: ResponseHead | None = None
        self._cut: LengthCut | None = None

    def whole(self, data: bytes) -> tuple[ResponseHead, bytes] | None:
        """Return head and body if `data` is exactly one response whose head repeats the last one, else None."""
        head, known = self._head, self._cut
        if head is None or known is None:
            return None
        end = data.find(HEAD_END) + len(HEAD_END)
        length = known.length(data[:end])
        if not length or length != len(data) - end:
            return None
        return head if length == head.length else msgspec.structs.replace(head, length=length), data[end:]

    def keep(self, raw: bytes, head: ResponseHead) -> ResponseHead:
        """Remember that `raw` parsed to `head`, if it has a body of known length. Return a head that later responses
        may share."""
        known = cut(raw, head.fields)
        if known is None or not head.length or head.bodiless or head.chunked:
            return head
        self._cut = known
        self._head = msgspec.structs.replace(head, passed={})
        return self._head


def final_head(raw: bytes, heads: int) -> tuple[int, int]:
    """Return the start and the end of the last of `heads` complete heads in `raw`. The others are interim (1xx).

    Raises:
        ValueError: an interim head is malformed.
    """
    start = 0
    for _ in range(heads - 1):
        end = raw.index(HEAD_END, start) + 4
        try:
            parse_response_head(raw[start:end], 100, False)
        except ValueError as error:
            raise ValueError(f"malformed interim response: {error}") from None
        start = end
    return start, raw.index(HEAD_END, start) + 4


def parse_response_head(raw: bytes, status: int, to_head_request: bool) -> ResponseHead:
    """Parse a head that llhttp has accepted.

    Raises:
        ValueError: the status line is malformed, or two readers could frame the body differently.
    """
    status_line, *header_lines = raw[:-4].split(b"\r\n")
    if status_line != b"HTTP/1.1 200 OK":
        status_line = _checked(status_line)
    lines, fields = split_lines(header_lines)
    coding = fields.get(b"transfer-encoding")
    old = status_line.startswith(b"HTTP/1.0")
    if coding is not None and (old or coding.lower() != b"chunked" or (b"\t" in raw and _TABBED_CODING.search(raw))):
        raise ValueError("unusable Transfer-Encoding")
    length = fields.get(b"content-length")
    connection = fields.get(b"connection", b"").lower()
    return ResponseHead(
        status,
        status_line.partition(b" ")[2],
        lines,
        fields,
        coding is not None,
        int(length) if length is not None else None,
        b"keep-alive" in connection if old else b"close" not in connection,
        fields.get(b"content-type", b"").lower().startswith(b"text/event-stream")
        and fields.get(b"content-encoding", b"identity").lower() == b"identity",
        to_head_request or status in (204, 304) or status < 200,
    )


def _checked(status_line: bytes) -> bytes:
    if _STATUS_LINE.fullmatch(status_line) is None:
        raise ValueError("malformed status line")
    return status_line if len(status_line) > 12 else status_line + b" "  # the space before an empty reason

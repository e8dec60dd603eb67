"""A client's request head, checked and parsed into the fields that the gateway reads.

llhttp (through httptools) is the parser. It accepts some heads that RFC 9112 forbids, or that two servers may read
differently (missing or duplicate Host, ``identity, chunked``, chunked on HTTP/1.0). They are refused here.
"""

from __future__ import annotations

import re
from typing import Any

import httptools
import msgspec

from router.errors import ErrorKind, RequestError

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
# RFC 9112 sections 3 and 5, without obs-fold: no control characters, no space before a colon, CRLF only.
_HEAD = re.compile(
    _TOKEN + rb" [\x21-\x7e]+ HTTP/1\.[01]\r\n(?:" + _TOKEN + rb":[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n",
)
_OTHER_VERSION = re.compile(_TOKEN + rb" [\x21-\x7e]+ HTTP/(?!1\.[01]\r)\d+(?:\.\d+)?\r\n")
_HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%\-]*|\[[0-9A-Fa-f:.]+\])(?::\d{0,5})?")
# Node's limit is 2,000, Apache's 100.
MAX_HEADER_LINES = 1_000
_DIGITS = re.compile(rb"\d{1,18}")
LENGTH_LINE = re.compile(rb"\r\ncontent-length:[ \t]*([1-9]\d{0,17})[ \t]*\r\n", re.IGNORECASE)
_MAX_DIGITS = 18


class RequestHead(msgspec.Struct, frozen=True, gc=False):
    """One request head. `lines` keeps every header line as received, with its lower-case name.

    `fields` maps lower-case names to values, with repeated headers joined by a comma. `minor` is x of HTTP/1.x.
    `authority` is set for a target in absolute form, and overrides Host. Heads of one connection that differ only in
    Content-Length share `lines`, `fields` and `forwarded` (see `RepeatedHead`). For the length, read `content_length`:
    `lines` and `fields` may hold an earlier request's. `forwarded` caches the head that `headers` wrote per worker.
    """

    method: str
    target: bytes
    path: str
    query: str
    minor: int
    lines: list[tuple[bytes, bytes]]
    fields: dict[bytes, bytes]
    keep_alive: bool
    content_length: int
    chunked: bool
    expects_continue: bool
    websocket: bool
    authority: bytes | None = None
    forwarded: dict[str, Any] | None = None

    @property
    def has_body(self) -> bool:
        return self.chunked or self.content_length > 0


def _bad(message: str) -> RequestError:
    return RequestError(ErrorKind.BAD_REQUEST, message)


def has_bare_lf(partial: bytes, start: int) -> bool:
    """Return whether an incomplete head has a line feed without carriage return at or after `start`.

    Such a head can never become valid. Two counts take a twentieth of the time of an expression that looks behind.
    """
    return partial.count(b"\n", start) != partial.count(b"\r\n", max(0, start - 1))


def parse_head(raw: bytes, parser: Any) -> RequestHead:
    """Parse a complete head, empty line included. `parser` is a new `httptools.HttpRequestParser`.

    Raises:
        RequestError: the head is refused; the error carries the status to answer.
    """
    if _HEAD.fullmatch(raw) is None:
        if _OTHER_VERSION.match(raw):
            raise RequestError(ErrorKind.HTTP_VERSION, "only HTTP/1.0 and HTTP/1.1 are supported")
        raise _bad("malformed request line or header")
    request_line, *header_lines = raw[:-4].split(b"\r\n")
    if len(header_lines) > MAX_HEADER_LINES:
        raise RequestError(ErrorKind.HEADERS_TOO_LARGE, f"more than {MAX_HEADER_LINES} header lines")
    method, target, version = request_line.split(b" ")
    lines, fields = split_lines(header_lines)
    minor = version[-1] - 48
    chunked = _chunked(fields, minor)
    length = _content_length(fields)
    _check_host(fields, minor)
    _feed(parser, raw)
    connection = _tokens(fields.get(b"connection"))
    authority, target = _origin_form(method, target)
    path, _, query = target.decode("ascii").partition("?")
    return RequestHead(
        method.decode("ascii"),
        target,
        path,
        query,
        minor,
        lines,
        fields,
        b"close" not in connection and (minor == 1 or b"keep-alive" in connection),
        length,
        chunked,
        _expects_continue(fields, minor),
        _websocket(method, fields, connection, minor),
        authority,
    )


class LengthCut:
    """A head, cut at its Content-Length: it recognises heads that differ from it in that number alone.

    All other bytes must be equal, so every check made once of the head holds for the repetition.
    """

    __slots__ = ("_after", "_before", "_varies")

    def __init__(self, raw: bytes, length: re.Match[bytes] | None) -> None:
        """`length` is the number's place in `raw`; without it, only an equal head is recognised."""
        self._before, self._after, self._varies = raw, b"", length is not None
        if length is not None:
            self._before, self._after = raw[: length.start(1)], raw[length.end(1) :]

    def length(self, raw: bytes) -> int | None:
        """Return the Content-Length of `raw`, or 0 if this head has none; None if `raw` is another head."""
        before, after = self._before, self._after
        if not raw.startswith(before):
            return None
        if not self._varies:
            return 0 if len(raw) == len(before) else None
        start, end = len(before), len(raw) - len(after)
        # a shorter head: compiled code raises SystemError for a slice of bytes whose start is beyond its end
        if end <= start or not raw.endswith(after):
            return None
        digits = raw[start:end]
        if not digits.isdigit() or digits.startswith(b"0") or len(digits) > _MAX_DIGITS:
            return None
        return int(digits)


def cut(raw: bytes, fields: dict[bytes, bytes]) -> LengthCut | None:
    """Return the cut of a valid head with these `fields`; None if its Content-Length is zero or in an unusual form."""
    if b"content-length" not in fields:
        return LengthCut(raw, None)
    length = LENGTH_LINE.search(raw)
    return None if length is None else LengthCut(raw, length)


class RepeatedHead:
    """A cache of one: the last head of a connection. Clients repeat their heads, apart from Content-Length."""

    __slots__ = ("_cut", "_head")

    def __init__(self) -> None:
        self._head: RequestHead | None = None
        self._cut: LengthCut | None = None

    def recall(self, raw: bytes) -> RequestHead | None:
        """Return the parsed head of `raw` if it repeats the last one, else None."""
        head, known = self._head, self._cut
        length = None if known is None else known.length(raw)
        if head is None or length is None:
            return None
        return head if length == head.content_length else msgspec.structs.replace(head, content_length=length)

    def keep(self, raw: bytes, head: RequestHead) -> RequestHead:
        """Remember that `raw` parsed to `head`. Return a head that later requests may share."""
        self._head = self._cut = None
        if head.chunked:
            return head
        self._cut = cut(raw, head.fields)
        self._head = msgspec.structs.replace(head, forwarded={})
        return self._head


def split_lines(header_lines: list[bytes]) -> tuple[list[tuple[bytes, bytes]], dict[bytes, bytes]]:
    """Return header lines as (lower-case name, line as received), and values by name, repeated ones comma-joined."""
    lines: list[tuple[bytes, bytes]] = []
    fields: dict[bytes, bytes] = {}
    repeated: dict[bytes, list[bytes]] = {}
    for line in header_lines:
        name, _, value = line.partition(b":")
        name = name.lower()
        value = value.strip()
        lines.append((name, line))
        if name in fields:
            repeated.setdefault(name, [fields[name]]).append(value)
        else:
            fields[name] = value
    for name, values in repeated.items():
        fields[name] = b", ".join(values)
    return lines, fields


def _feed(parser: Any, raw: bytes) -> None:
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserInvalidMethodError:
        raise RequestError(ErrorKind.NOT_IMPLEMENTED, "unknown request method") from None
    except httptools.HttpParserError as error:
        raise _bad(str(error)) from None


def _tokens(value: bytes | None) -> tuple[bytes, ...]:
    if value is None:
        return ()
    if b"," not in value:
        return (value.lower(),)
    return tuple(token.strip(b" \t").lower() for token in value.split(b","))


def _chunked(fields: dict[bytes, bytes], minor: int) -> bool:
    value = fields.get(b"transfer-encoding")
    if value is None:
        return False
    if minor == 0:
        raise _bad("Transfer-Encoding on HTTP/1.0")
    if b"content-length" in fields:
        raise _bad("both Content-Length and Transfer-Encoding")
    codings = _tokens(value)
    if codings == (b"chunked",):
        return True
    if b"identity" in codings or b"" in codings or b"chunked" in codings[:-1]:
        raise _bad("ambiguous Transfer-Encoding")
    raise RequestError(ErrorKind.NOT_IMPLEMENTED, "the only supported transfer coding is chunked")


def _content_length(fields: dict[bytes, bytes]) -> int:
    # repeated headers arrive comma-joined, which is no number
    value = fields.get(b"content-length")
    if value is None:
        return 0
    if _DIGITS.fullmatch(value) is None:
        raise _bad("Content-Length must be one decimal number")
    return int(value)


def _check_host(fields: dict[bytes, bytes], minor: int) -> None:
    # repeated headers arrive comma-joined, which is no host
    host = fields.get(b"host")
    if host is None:
        if minor:
            raise _bad("Host header missing")
    elif _HOST.fullmatch(host) is None:
        raise _bad("Host header invalid or repeated")


def _origin_form(method: bytes, target: bytes) -> tuple[bytes | None, bytes]:
    if method == b"CONNECT":  # RFC 9110 section 9.3.6
        raise RequestError(ErrorKind.NOT_IMPLEMENTED, "CONNECT is not supported")
    if target[:1] == b"/" or (target == b"*" and method == b"OPTIONS"):
        if b"#" in target:
            raise _bad("fragment in the request target")
        return None, target
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https") or b"#" in rest:
        raise _bad("the request target is neither a path nor an http URL")
    authority, slash, path = rest.partition(b"/")
    authority, mark, query = authority.partition(b"?")
    if not authority or _HOST.fullmatch(authority) is None:
        raise _bad("the request target names no valid host")
    return authority, slash + path if slash and not mark else b"/" + mark + query + slash + path


def _expects_continue(fields: dict[bytes, bytes], minor: int) -> bool:
    value = fields.get(b"expect")
    if value is None or not minor:
        return False
    if value.lower() != b"100-continue":
        raise RequestError(ErrorKind.EXPECTATION_FAILED, "the only supported expectation is 100-continue")
    return True


def _websocket(method: bytes, fields: dict[bytes, bytes], connection: tuple[bytes, ...], minor: int) -> bool:
    if b"upgrade" not in fields or b"upgrade" not in connection:
        return False
    return method == b"GET" and minor == 1 and fields[b"upgrade"].lower() == b"websocket"

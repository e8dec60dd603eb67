"""Responses of a hostile or broken worker."""

from dataclasses import dataclass
from itertools import count

from tests.conformance.vectors import chunks, lengths, transfer
from tests.conformance.vectors.pieces import ID, LAST, SPELT_SPACES, TE, E, between, chunk
from tests.properties.strict import read_final

VERSION = b"HTTP/1.1"
OK = VERSION + b" 200 OK\r\n"
BODY = b'{"id":"x"}'
L = b"Content-Length: %d\r\n" % len(BODY)
CHUNKS = chunk(BODY) + LAST
EXACT = b"x" * lengths.SIZE
"""Content whose length matches the valid ones among the lengths."""
EVENTS = OK + b"Content-Type: text/event-stream\r\n"
EVENT = b'data: {"choices":[]}\n\n'
DONE = b"data: [DONE]\n\n"

STATUS_LINES = (
    b"HTTP/1.1 200 OK", b"HTTP/1.1 200 ", b"HTTP/1.1 200", b"HTTP/1.0 200 OK", b"HTTP/0.9 200 OK", b"HTTP/1.2 200 OK",
    b"HTTP/2.0 200 OK", b"HTTP/2 200 OK", b"HTTP/1 200 OK", b"HTTP/1. 200 OK", b"HTTP/1.10 200 OK",
    b"HTTP/01.1 200 OK", b"http/1.1 200 OK", b"HTTPS/1.1 200 OK", b"HTP/1.1 200 OK", b"ICY 200 OK",
    b"RTSP/1.0 200 OK", b"HTTP 200 OK", b"200 OK", b"HTTP/1.1 20 OK", b"HTTP/1.1 2000 OK", b"HTTP/1.1 0200 OK",
    b"HTTP/1.1 +200 OK", b"HTTP/1.1 -200 OK", b"HTTP/1.1 2OO OK", b"HTTP/1.1 200OK", b"HTTP/1.1 200.5 OK",
    b"HTTP/1.1 0x0 OK", b"HTTP/1.1 099 OK", b"HTTP/1.1 000 OK", b"HTTP/1.1 100 OK", b"HTTP/1.1 101 OK",
    b"HTTP/1.1 102 OK", b"HTTP/1.1 103 OK", b"HTTP/1.1 199 OK", b"HTTP/1.1 201 Created", b"HTTP/1.1 204 No Content",
    b"HTTP/1.1 205 Reset Content", b"HTTP/1.1 206 Partial Content", b"HTTP/1.1 299 Odd", b"HTTP/1.1 301 Moved",
    b"HTTP/1.1 304 Not Modified", b"HTTP/1.1 400 Bad Request", b"HTTP/1.1 404 Not Found", b"HTTP/1.1 499 Odd",
    b"HTTP/1.1  200 OK", b"HTTP/1.1 200  OK", b"HTTP/1.1\t200 OK", b"HTTP/1.1 200\tOK", b" HTTP/1.1 200 OK",
    b"\r\nHTTP/1.1 200 OK", b"\nHTTP/1.1 200 OK", b"\r\n\r\nHTTP/1.1 200 OK", b"\x00HTTP/1.1 200 OK",
    b"\xef\xbb\xbfHTTP/1.1 200 OK", b"HTTP/1.1 200 O\xc3\xa9", b"HTTP/1.1 200 O\x00K", b"HTTP/1.1 200 O\x1bK",
    b"HTTP/1.1 200 O\x7fK", b"HTTP/1.1 200 O\rK", b"HTTP/1.1 200 " + b"x" * 4_000, b"HTTP/1.1 200 OK\r\n X: folded",
    b"HTTP/1.1 200 OK HTTP/1.1 200 OK", b"GET / HTTP/1.1", b"",
)  # fmt: skip
ENDS = (b"\n", b"\r", b"\r\r\n", b"\n\r\n", b"\n\r", b" \r\n", b"\r\n ", b"\x00\r\n", b"\r\n\r\n")
FIELDS = (
    b"X: a", b"X: \xff", b"X:", b"X: a\r\n b", b"X:\r\n a", b" X: a", b"X : a", b"X\t: a", b"X", b": a", b"X: \x00",
    b"X: \x01", b"X: \x7f", b"X: a\nY: b", b"X: a\rY: b", b"X\x00: a", b"X\xe9: a", b"X Y: a", b"X(y): a",
    b"Set-Cookie: a\r\nSet-Cookie: b", b"Connection: close", b"Connection: keep-alive", b"Connection: x\r\nX: a",
    b"Connection: content-length", b"Connection: transfer-encoding", b"Connection: upgrade\r\nUpgrade: websocket",
    b"Upgrade: h2c", b"Keep-Alive: timeout=1", b"Proxy-Connection: close", b"Trailer: X", b"TE: trailers",
    b"Content-Encoding: gzip", b"Content-Type: multipart/byteranges; boundary=x", b"X-Request-Id: x",
    b"X: " + b"a" * 7_000, b"X: " + b"a" * 70_000, b"X: a\r\n" * 900 + b"X: a",
)  # fmt: skip
INTERIM = (
    b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n", b"HTTP/1.1 102 Processing\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 100 Continue\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\n\r\n", b"HTTP/1.1 199 Odd\r\n\r\n", b"HTTP/1.0 100 Continue\r\n\r\n",
    b"HTTP/1.1 100\r\n\r\n", b"HTTP/1.1 100 Continue\n\n", b"HTTP/1.1 100 Continue\r\n\r\n\r\n",
    b"\r\nHTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n",
)  # fmt: skip
AFTER = (
    b"\r\n", b"\r", b"\n", b"x", b"0\r\n\r\n", b"\x00", b" ", OK + L + E + BODY, b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n", EVENT, b"x" * 9_000,
)  # fmt: skip
MESSAGES = {
    "a length": OK + L + E + BODY,
    "chunks": OK + TE + E + CHUNKS,
    "chunks with trailers": OK + TE + E + b"A;a=b\r\n" + BODY + b"\r\n00\r\nX: y\r\n\r\n",
    "a length, and close": OK + b"Connection: close\r\n" + L + E + BODY,
    "an empty body": OK + b"Content-Length: 0\r\n\r\n",
    "204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "304": b"HTTP/1.1 304 Not Modified\r\n" + L + E,
    "events": EVENTS + TE + E + chunk(EVENT) + chunk(EVENT + DONE) + LAST,
    "events with a length": EVENTS + b"Content-Length: %d\r\n\r\n" % len(EVENT + DONE) + EVENT + DONE,
    "events until close": EVENTS + E + EVENT + DONE,
    "until close": OK + E + BODY,
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\n" + L + E + BODY,
}


def heads():
    for status in STATUS_LINES:
        yield "status line", status + E + L + E + BODY
        yield "status line before chunks", status + E + TE + E + CHUNKS
    for line in between(b"HTTP/1.1 200", b"OK\r\n"):
        yield "any byte after a status", line + L + E + BODY
    for end in ENDS:
        yield "end of the status line", OK[:-2] + end + L + E + BODY
        yield "end of a field", OK + b"X: y" + end + L + E + BODY
        yield "end of the head", OK + L + end + BODY
        yield "end of the head", OK + L[:-2] + end + BODY
    for field in FIELDS:
        yield "field", OK + field + E + L + E + BODY
        yield "field before chunks", OK + field + E + TE + E + CHUNKS
        yield "field until close", OK + field + E + E + BODY
    for space in SPELT_SPACES:
        yield "space beside a length", OK + b"Content-Length" + space + b": %d" % len(BODY) + E + E + BODY
        yield "space beside a length", OK + b"Content-Length:" + space + b"%d" % len(BODY) + E + E + BODY
        yield "space beside a length", OK + b"Content-Length: %d" % len(BODY) + space + E + E + BODY
        yield "space beside a coding", OK + b"Transfer-Encoding" + space + b": chunked" + E + E + CHUNKS
        yield "space beside a coding", OK + b"Transfer-Encoding:" + space + b"chunked" + E + E + CHUNKS
        yield "space beside a coding", OK + b"Transfer-Encoding: chunked" + space + E + E + CHUNKS


def framing():
    for value in lengths.VALUES:
        yield "length", OK + lengths.NAME + b": " + value + E + E + EXACT
        yield "length before chunks", OK + lengths.NAME + b": " + value + E + TE + E + CHUNKS
    for first in lengths.PAIRED:
        yield "two lengths", OK + b"Content-Length: %b\r\nContent-Length: %b\r\n\r\n" % (lengths.DIGITS, first) + EXACT
        yield "two lengths", OK + b"Content-Length: %b\r\nContent-Length: %b\r\n\r\n" % (first, lengths.DIGITS) + EXACT
    for value in transfer.VALUES:
        yield "coding", OK + transfer.NAME + b": " + value + E + E + CHUNKS
        yield "coding beside a length", OK + L + transfer.NAME + b": " + value + E + E + BODY
        yield "two codings", OK + TE + transfer.NAME + b": " + value + E + E + CHUNKS
        yield "coding in HTTP/1.0", b"HTTP/1.0 200 OK\r\n" + transfer.NAME + b": " + value + E + E + CHUNKS


def interim():
    for before in INTERIM:
        for message in (OK + L + E + BODY, OK + TE + E + CHUNKS):
            yield "interim answer", before + message
            yield "two interim answers", before + INTERIM[0] + message
        yield "interim answer and nothing else", before


def ends():
    for name, message in MESSAGES.items():
        for after in AFTER:
            yield f"bytes after {name}", message + after
        for end in range(0, len(message), 3):
            yield f"{name}, cut short", message[:end]
    for status in (b"204 No Content", b"304 Not Modified", b"205 Reset Content", b"101 Switching", b"100 Continue"):
        for lines, body in ((L, BODY), (TE, CHUNKS), (b"", BODY), (b"Content-Length: 0\r\n", b""), (TE, LAST)):
            yield "body where there is none", VERSION + b" " + status + E + lines + E + body


def chunked():
    for rule, body in chunks.bodies():
        yield rule, OK + TE + E + body


@dataclass(frozen=True)
class Answer:
    """A worker's response to the request with `number`: `raw` in pieces of `piece_bytes`, then perhaps a close."""

    number: int
    rule: str
    raw: bytes
    piece_bytes: int
    closes: bool
    to_head: bool

    @property
    def meant(self):
        """Return the strict reader's result, or None."""
        return read_final(self.raw, bodiless=self.to_head, closed=self.closes)

    @property
    def asks(self):
        method = b"HEAD" if self.to_head else b"GET"
        return method + b" /v/%d/a HTTP/1.1\r\nHost: gw\r\n\r\n" % self.number


FAMILIES = {
    "heads": heads,
    "framing": framing,
    "chunks": chunked,
    "interim answers": interim,
    "ends": ends,
}
# All in one piece; every third also in sevens, every seventh byte by byte, every fifth to a HEAD request.
_PIECES = ((7, 3), (1, 7))
_HEADS = 5
_LARGEST_IN_PIECES = 600


def _answers(raw, rule, numbers, index):
    """If a response has an end, the worker leaves the connection open. Bytes after the end are sent in the same piece,
    because later bytes would begin the next response."""
    meant = read_final(raw, closed=False)
    closes = meant is None or not meant.whole
    exact = meant is None or meant.end == len(raw)
    yield Answer(next(numbers), rule, raw, len(raw) or 1, closes, False)
    if exact and len(raw) <= _LARGEST_IN_PIECES:
        for piece_bytes, each in _PIECES:
            if index % each == 0:
                yield Answer(next(numbers), rule, raw, piece_bytes, closes, False)
    if index % _HEADS == 0:
        yield Answer(next(numbers), rule, raw, len(raw) or 1, closes, True)


def numbered():
    numbers = count(10_000)
    for family, rules in FAMILIES.items():
        raws = {raw.replace(ID, b"00000"): rule for rule, raw in rules()}
        made = []
        for index, (raw, rule) in enumerate(raws.items()):
            made += _answers(raw, rule, numbers, index)
        yield family, tuple(made)


ANSWERS = dict(numbered())
TOTAL = sum(map(len, ANSWERS.values()))

"""What workers may answer, and what their clients get of it: one row per shape.

Rules are sections of RFC 9112 (HTTP/1.1) unless another number stands in front.
"""

from tests.conformance.corpus import E, H, ResponseCase

OK = b"HTTP/1.1 200 OK\r\n"
JSON = b'{"id":"x"}'
L = b"Content-Length: 10\r\n"
TE = b"Transfer-Encoding: chunked\r\n"
CHUNKED = b"a\r\n" + JSON + b"\r\n0\r\n\r\n"
SSE = OK + b"Content-Type: text/event-stream\r\n" + TE + E
EVENT = b'data: {"choices":[]}\n\n'
DEEP = b"data: " + b"[" * 6_000 + b"\n\n"
DONE = b"data: [DONE]\n\n"
ABORT = b'data: {"choices":[{"finish_reason":"abort"}]}\n\n'
ABORTED = b'{"choices":[{"finish_reason":"abort"}]}'
ABORTED_LENGTH = b"Content-Length: %d\r\n" % len(ABORTED)
NO_END = "OpenAI"
DIED = "worker_died_in_stream"
LONG = b'{"id":"' + b"x" * 70_000 + b'"}'
WHOLE = "a short body is kept until it is whole"
HEAD_REQUEST = b"HEAD /v1/decisions HTTP/1.1\r\n" + H + E
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def framed(content, line=b"%x\r\n"):
    return line % len(content) + content + b"\r\n"


def with_header(line):
    return OK + line + b"\r\n" + L + E + JSON


def coded(*values, body=CHUNKED):
    return OK + b"".join(b"Transfer-Encoding:" + value + b"\r\n" for value in values) + E + body


def answer(name, raw, rule, why="", *, status=200, content=JSON, pooled=True, **more):
    """Passed on; `pooled` unless said otherwise."""
    return ResponseCase(name, raw, "answer", rule, status, content, pooled=pooled, why=why, **more)


def error(name, raw, rule, why="", **more):
    """Nothing of it reaches the client: an error of ours does."""
    return ResponseCase(name, raw, "error", rule, 503, why=why, **more)


def cut(name, raw, rule, why="", *, content, **more):
    """Begun, and cut off where its framing shows that something is missing."""
    return ResponseCase(name, raw, "cut", rule, 200, content, why=why, **more)


def told(name, raw, rule, why="", *, content, code="bad_upstream_response", **more):
    """A stream begun, and ended with an error event."""
    return ResponseCase(name, raw, "event", rule, 200, content, code, why=why, **more)


STATUS_LINE = (
    answer("a plain answer", OK + L + E + JSON, "6.3"),
    answer("a status without a reason", b"HTTP/1.1 200 \r\n" + L + E + JSON, "4"),
    answer("a status without the space after it", b"HTTP/1.1 200\r\n" + L + E + JSON, "4", "some servers omit it"),
    answer("a reason with obs-text", b"HTTP/1.1 200 \xc3\xa0 la carte\r\n" + L + E + JSON, "4"),
    answer("an unknown status", b"HTTP/1.1 299 Odd\r\n" + L + E + JSON, "9110 15", status=299),
    answer("HTTP/1.0", b"HTTP/1.0 200 OK\r\n" + L + E + JSON, "9.3", pooled=False),
    answer("HTTP/1.0 with keep-alive", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + L + E + JSON, "9.3"),
    answer("HTTP/1.0 until close", b"HTTP/1.0 200 OK\r\n\r\n" + JSON, "6.3", closes=True, pooled=False),
    error("HTTP/0.9 with a status", b"HTTP/0.9 200 OK\r\n" + L + E + JSON, "2.3"),
    error("HTTP/0.9", b'{"id":"x"}', "2.3", closes=True),
    error("HTTP/2.0", b"HTTP/2.0 200 OK\r\n" + L + E + JSON, "2.3"),
    error("HTTP/2 without a minor version", b"HTTP/2 200 OK\r\n" + L + E + JSON, "2.3"),
    error("HTTP/1.2", b"HTTP/1.2 200 OK\r\n" + L + E + JSON, "2.3"),
    error("a lower-case version", b"http/1.1 200 OK\r\n" + L + E + JSON, "2.3"),
    error("another protocol", b"ICY 200 OK\r\n" + L + E + JSON, "2.3"),
    error("a status of two digits", b"HTTP/1.1 20 OK\r\n" + L + E + JSON, "4"),
    error("a status of four digits", b"HTTP/1.1 2000 OK\r\n" + L + E + JSON, "4"),
    error("a status below 100", b"HTTP/1.1 099 OK\r\n" + L + E + JSON, "4"),
    error("a negative status", b"HTTP/1.1 -20 OK\r\n" + L + E + JSON, "4"),
    error("no status", b"HTTP/1.1 OK\r\n" + L + E + JSON, "4"),
    error("two spaces", b"HTTP/1.1  200 OK\r\n" + L + E + JSON, "4"),
    error("a tab", b"HTTP/1.1\t200 OK\r\n" + L + E + JSON, "4"),
    error("a NUL in the reason", b"HTTP/1.1 200 O\x00K\r\n" + L + E + JSON, "4"),
    error("a control character in the reason", b"HTTP/1.1 200 O\x1bK\r\n" + L + E + JSON, "4"),
    error("a bare CR in the reason", b"HTTP/1.1 200 O\rX: y\r\n" + L + E + JSON, "2.2"),
    error("a bare LF after the reason", b"HTTP/1.1 200 OK\n" + L + E + JSON, "2.2"),
    error("an empty line first", E + OK + L + E + JSON, "2.2", "valid before requests only"),
    error("a line feed first", b"\n" + OK + L + E + JSON, "2.2"),
    error("two empty lines first", E + E + OK + L + E + JSON, "2.2"),
    error("a space first", b" " + OK + L + E + JSON, "2.2"),
    error("a TLS alert", b"\x15\x03\x01\x00\x02\x02\x16", "2.2", closes=True),
    error("nothing", b"", "6.3", closes=True),
)

HEADERS = (
    answer(
        "headers as they come",
        with_header(b"X-oDD:  a \t\r\nx-odd: b\r\nY: \xff"),
        "9110 5",
        has=(b"X-oDD:  a \t", b"x-odd: b", b"Y: \xff"),
    ),
    answer(
        "hop-by-hop headers",
        with_header(b"Connection: X-Mine\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: x\r\nUpgrade: h2c"),
        "9110 7.6.1",
        lacks=(b"x-mine", b"keep-alive", b"proxy-connection", b"upgrade", b"connection"),
    ),
    answer(
        "the length named in Connection",
        with_header(b"Connection: content-length"),
        "9110 7.6.1",
        has=(b"Content-Length: 10",),
    ),
    answer(
        "the encoding named in Connection",
        with_header(b"Connection: content-encoding\r\nContent-Encoding: x"),
        "9110 7.6.1",
        has=(b"Content-Encoding: x",),
    ),
    answer(
        "an unsolicited upgrade",
        with_header(b"Connection: Upgrade\r\nUpgrade: h2c"),
        "9110 7.8",
        lacks=(b"upgrade",),
    ),
    answer(
        "a request id of its own",
        with_header(b"X-Request-Id: a\r\nx-request-id: b"),
        "5",
        "the client gets the gateway's",
    ),
    error("obs-fold", with_header(b"X: a\r\n b"), "5.2"),
    error("white space before the first header", OK + b" X: a\r\n" + L + E + JSON, "2.2"),
    error("a bare CR in a value", with_header(b"X: a\rSet-Cookie: b"), "2.2"),
    error("a bare LF in a value", with_header(b"X: a\nSet-Cookie: b"), "2.2"),
    error("a bare CR before the line break", with_header(b"X: a\r"), "2.2"),
    error("a NUL in a value", with_header(b"X: a\x00b"), "9110 5.5"),
    error("a control character in a value", with_header(b"X: a\x01b"), "9110 5.5"),
    error("a space before a colon", with_header(b"X : a"), "5.1"),
    error("a space before a length's colon", OK + b"Content-Length : 10\r\n\r\n" + JSON, "5.1"),
    error("no colon", with_header(b"nonsense"), "5"),
    error("an empty name", with_header(b": a"), "5"),
    error("a name that is not ASCII", with_header(b"X\xe9: a"), "9110 5.1"),
    error("bare LF at the end of the head", OK + b"Content-Length: 10\n\n" + JSON, "2.2"),
    error("a bare CR at the end of the head", OK + L + b"\r\r" + JSON, "2.2"),
    error("a head too large", with_header(b"X: " + b"x" * 70_000), "6585 5", "read up to the gateway's own limit"),
    error("a head that never ends", OK + b"X: y\r\n" * 20_000, "6585 5"),
)

LENGTH = (
    answer("an empty body", OK + b"Content-Length: 0\r\n\r\n", "6.3", content=b""),
    answer("white space around a length", OK + b"Content-Length: \t10 \t\r\n\r\n" + JSON, "5.1"),
    answer("until close", OK + E + JSON, "6.3", "its end looks like a lost connection", closes=True, pooled=False),
    answer("until close, and empty", OK + E, "6.3", content=b"", closes=True, pooled=False),
    answer("close announced", OK + b"Connection: close\r\n" + L + E + JSON, "9.6", closes=True, pooled=False),
    answer("close announced, and not done", OK + b"Connection: foo, CLOSE\r\n" + L + E + JSON, "9.6", pooled=False),
    error("two lengths", OK + b"Content-Length: 10\r\nContent-Length: 3\r\n\r\n" + JSON, "6.3"),
    error("two equal lengths", OK + L + L + E + JSON, "6.3"),
    error("a list of lengths", OK + b"Content-Length: 10, 10\r\n\r\n" + JSON, "6.3"),
    error("a negative length", OK + b"Content-Length: -10\r\n\r\n" + JSON, "6.3"),
    error("a plus sign", OK + b"Content-Length: +10\r\n\r\n" + JSON, "6.3"),
    error("a hexadecimal length", OK + b"Content-Length: 0xa\r\n\r\n" + JSON, "6.3"),
    error("a space in a length", OK + b"Content-Length: 1 0\r\n\r\n" + JSON, "6.3"),
    error("an empty length", OK + b"Content-Length:\r\n\r\n" + JSON, "6.3"),
    error("a length beyond 64 bits", OK + b"Content-Length: 18446744073709551626\r\n\r\n" + JSON, "6.3"),
    answer(
        "line breaks after the end",
        OK + L + E + JSON + E,
        "9.2",
        "not relayed, since the end is known",
        pooled=False,
    ),
    answer("a carriage return after the end", OK + L + E + JSON + b"\r", "9.2", pooled=False),
    answer("line breaks after an empty body", OK + b"Content-Length: 0\r\n\r\n\r\n", "9.2", content=b"", pooled=False),
    error("bytes after the end", OK + L + E + JSON + b"X", "9.2"),
    error("another response after the end", (OK + L + E + JSON) * 2, "9.2", "it was not requested"),
    error("bytes after the end of a last response", OK + b"Connection: close\r\n" + L + E + JSON + b"X", "9.2"),
    error("less than announced", OK + L + E + JSON[:5], "6.3", WHOLE, closes=True),
    cut(
        "less of a long body than announced",
        OK + b"Content-Length: 80000\r\n\r\n" + LONG,
        "6.3",
        content=LONG,
        closes=True,
    ),
    cut(
        "the largest length",
        OK + b"Content-Length: 18446744073709551615\r\n\r\n" + LONG,
        "6.3",
        content=LONG,
        closes=True,
    ),
    error("no byte of an announced body", OK + L + E, "6.3", closes=True),
)

TRANSFER_CODING = (
    answer("chunked", OK + TE + E + CHUNKED, "7.1"),
    answer("chunked in odd case", coded(b" cHUNKED"), "7"),
    error("a tab after chunked", coded(b" chunked\t"), "5.1", "valid, but llhttp reads another coding"),
    error(
        "gzip, chunked", coded(b" gzip, chunked"), "6.1", "the gateway would have to decode it, and never asks for it"
    ),
    error("chunked, gzip", coded(b" chunked, gzip"), "6.3"),
    error("chunked twice in a list", coded(b" chunked, chunked"), "6.1"),
    error("chunked twice in two lines", coded(b" chunked", b" chunked"), "6.1"),
    error("identity", coded(b" identity", body=JSON), "6.1", closes=True),
    error("an unknown coding", coded(b" pigeons", body=JSON), "6.1", closes=True),
    error("an empty coding", coded(b""), "6.1"),
    error("a vertical tab before chunked", coded(b" \x0bchunked"), "5.5"),
    error("a space before a coding's colon", OK + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKED, "5.1"),
    error("chunked on HTTP/1.0", b"HTTP/1.0 200 OK\r\n" + TE + E + CHUNKED, "6.1"),
    error("both, length first", OK + L + TE + E + CHUNKED, "6.3"),
    error("both, length last", OK + TE + L + E + CHUNKED, "6.3"),
    error("both, the coding not chunked", OK + L + b"Transfer-Encoding: identity\r\n\r\n" + JSON, "6.3"),
)

CHUNKS = (
    answer("leading zeros in a size", OK + TE + E + b"000a\r\n" + JSON + b"\r\n00\r\n\r\n", "7.1", kept=False),
    answer(
        "an extension", OK + TE + E + b'a;x=y;z="q;r"\r\n' + JSON + b"\r\n0;e\r\n\r\n", "7.1.1", "relayed", kept=False
    ),
    answer(
        "a trailer",
        OK + TE + b"Trailer: X-Sum\r\n\r\na\r\n" + JSON + b"\r\n0\r\nX-Sum: 1\r\n\r\n",
        "7.1.2",
        "relayed, with its Trailer header",
        has=(b"Trailer: X-Sum",),
        kept=False,
    ),
    answer(
        "content that looks like an answer",
        OK + TE + E + framed(OK + L + E + JSON) + b"0\r\n\r\n",
        "7.1",
        content=OK + L + E + JSON,
    ),
    answer("an empty body in chunks", OK + TE + E + b"0\r\n\r\n", "7.1", content=b""),
    answer(
        "line breaks after the end",
        OK + TE + E + CHUNKED + E,
        "9.2",
        "the client's connection is closed to show the end",
        pooled=True,
        kept=False,
    ),
    error(
        "a length in the trailers", OK + TE + E + b"a\r\n" + JSON + b"\r\n0\r\nContent-Length: 9\r\n\r\n", "9110 6.5.1"
    ),
    error("a size that is no number", OK + TE + E + b"zz\r\n" + JSON + b"\r\n0\r\n\r\n", "7.1"),
    error("a size with 0x", OK + TE + E + b"0xa\r\n" + JSON + b"\r\n0\r\n\r\n", "7.1"),
    error("a negative size", OK + TE + E + b"-a\r\n" + JSON + b"\r\n0\r\n\r\n", "7.1"),
    error("a size beyond 64 bits", OK + TE + E + b"1000000000000000a\r\n" + JSON + b"\r\n0\r\n\r\n", "7.1"),
    error("a space after a size", OK + TE + E + b"a \r\n" + JSON + b"\r\n0\r\n\r\n", "7.1"),
    error("a size line with a bare LF", OK + TE + E + b"a\n" + JSON + b"\r\n0\r\n\r\n", "2.2"),
    error("a line feed in an extension", OK + TE + E + b"a;x\ny\r\n" + JSON + b"\r\n0\r\n\r\n", "2.2"),
    error("a carriage return in an extension", OK + TE + E + b"a;x\ry\r\n" + JSON + b"\r\n0\r\n\r\n", "2.2"),
    error("content longer than its size", OK + TE + E + b"9\r\n" + JSON + b"\r\n0\r\n\r\n", "7.1"),
    error("no line break after content", OK + TE + E + b"a\r\n" + JSON + b"0\r\n\r\n", "7.1"),
    error("a bare LF after content", OK + TE + E + b"a\r\n" + JSON + b"\n0\r\n\r\n", "2.2"),
    error("the end is a bare LF", OK + TE + E + b"a\r\n" + JSON + b"\r\n0\r\n\n", "2.2"),
    error("a chunk after the end", OK + TE + E + CHUNKED + framed(JSON), "9.2"),
    error("an answer after the end", OK + TE + E + CHUNKED + OK + L + E + JSON, "9.2"),
    error("a loss within a chunk", OK + TE + E + b"a\r\n" + JSON[:4], "8", WHOLE, closes=True),
    error("a loss after a chunk", OK + TE + E + b"a\r\n" + JSON + b"\r\n", "8", WHOLE, closes=True),
    error("a loss after the last chunk", OK + TE + E + b"a\r\n" + JSON + b"\r\n0\r\n", "8", WHOLE, closes=True),
    error("a chunk of all sizes", OK + TE + E + b"ffffffffffffffff\r\n" + JSON, "7.1", WHOLE, closes=True),
    cut("a loss within a long chunk", OK + TE + E + b"fffff\r\n" + LONG, "8", content=LONG, closes=True),
    cut("a loss after a long chunk", OK + TE + E + framed(LONG), "8", content=LONG, closes=True),
    cut("a loss after the last chunk of many", OK + TE + E + framed(LONG) + b"0\r\n", "8", content=LONG, closes=True),
)

STREAMS = (
    answer("a stream", SSE + framed(EVENT) + framed(DONE) + b"0\r\n\r\n", "7.1", content=EVENT + DONE),
    answer(
        "a stream with a trailer",
        SSE + framed(EVENT + DONE) + b"0\r\nX: y\r\n\r\n",
        "7.1.2",
        content=EVENT + DONE,
        kept=False,
    ),
    answer(
        "a stream of announced length",
        OK + b"Content-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(EVENT) + EVENT,
        "6.3",
        content=EVENT,
    ),
    answer(
        "a stream until close",
        OK + b"Content-Type: text/event-stream\r\n\r\n" + EVENT + DONE,
        "6.3",
        content=EVENT + DONE,
        closes=True,
        pooled=False,
    ),
    answer("an event nested too deep", SSE + framed(DEEP + DONE) + b"0\r\n\r\n", "8259 9", content=DEEP + DONE),
    told("a stream without its last event", SSE + framed(EVENT) + b"0\r\n\r\n", NO_END, content=EVENT, code=DIED),
    told(
        "a stream without its last event, until close",
        OK + b"Content-Type: text/event-stream\r\n\r\n" + EVENT,
        NO_END,
        content=EVENT,
        code=DIED,
        closes=True,
    ),
    told(
        "a stream that ends within an event",
        SSE + framed(EVENT + b"data: x") + b"0\r\n\r\n",
        NO_END,
        content=EVENT + b"data: x\n\n",
        code=DIED,
    ),
    error("a stream with a trailer and without its last event", SSE + framed(EVENT) + b"0\r\nX: y\r\n\r\n", NO_END),
    error("an aborted answer", OK + ABORTED_LENGTH + E + ABORTED, NO_END, "another worker can answer"),
    error("an aborted stream", SSE + framed(EVENT) + framed(ABORT + DONE) + b"0\r\n\r\n", NO_END),
    error("a stream without an event", SSE + b"0\r\n\r\n", "7.1", "another worker can answer"),
    error("a stream of comments", SSE + framed(b": hi\n\n") + b"0\r\n\r\n", "7.1"),
    error("a stream with a broken first chunk", SSE + b"zz\r\n", "7.1"),
    told(
        "a stream lost after an event",
        SSE + framed(EVENT),
        "8",
        content=EVENT,
        code="worker_died_in_stream",
        closes=True,
    ),
    told(
        "a stream lost in an event, after a chunk",
        SSE + framed(EVENT) + framed(b"data: x"),
        "8",
        content=EVENT + b"data: x\n\n",
        code="worker_died_in_stream",
        closes=True,
    ),
    cut(
        "a stream lost within a chunk",
        SSE + framed(EVENT) + b"20\r\ndata: x",
        "8",
        content=EVENT + b"data: x",
        closes=True,
    ),
    cut("a stream lost within a size line", SSE + framed(EVENT) + b"2", "8", content=EVENT, closes=True),
)

INTERIM = (
    answer("100 before the response", CONTINUE + OK + L + E + JSON, "9110 15.2", "not requested, not relayed"),
    answer(
        "103 before the answer",
        b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + OK + L + E + JSON,
        "9110 15.2",
        lacks=(b"link",),
    ),
    answer("many 100 before the response", CONTINUE * 50 + OK + L + E + JSON, "9110 15.2"),
    error("more 100 than a head may have bytes", CONTINUE * 4_000, "9110 15.2"),
    error(
        "100 with a body",
        b"HTTP/1.1 100 Continue\r\nContent-Length: 10\r\n\r\n" + JSON + OK + L + E + JSON,
        "9110 15.2",
    ),
    error("an empty line before 100", E + CONTINUE + OK + L + E + JSON, "2.2"),
    error("two empty lines before 100", E + E + CONTINUE + OK + L + E + JSON, "2.2"),
    error("an empty line after 100", CONTINUE + E + OK + L + E + JSON, "2.2"),
    error("two empty lines after 100", CONTINUE + E + E + OK + L + E + JSON, "2.2"),
    error("two empty lines between two 100", CONTINUE + E + E + CONTINUE + OK + L + E + JSON, "2.2"),
    error("100 with close", b"HTTP/1.1 100 Continue\r\nConnection: close\r\n\r\n" + OK + L + E + JSON, "9110 15.2"),
    error("100 and nothing else", CONTINUE, "9110 15.2", closes=True),
    error(
        "an unsolicited 101",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nraw",
        "9110 15.2.2",
    ),
    error("101 without an upgrade", b"HTTP/1.1 101 Switching Protocols\r\n\r\nraw", "9110 15.2.2"),
)

BODILESS = (
    answer(
        "204",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        "6.3",
        "never pooled: a body may follow",
        status=204,
        content=b"",
        bodiless=True,
        pooled=False,
    ),
    error(
        "204 with a body",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 10\r\n\r\n" + JSON,
        "6.3",
        "the bytes after it belong to no response",
    ),
    answer(
        "304 with a length",
        b"HTTP/1.1 304 Not Modified\r\n" + L + E,
        "6.3",
        status=304,
        content=b"",
        bodiless=True,
        pooled=False,
    ),
    error(
        "304 with a body",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n" + JSON,
        "6.3",
        "the bytes after it belong to no response",
    ),
    answer(
        "an answer to HEAD",
        OK + L + E,
        "6.3",
        content=b"",
        request=HEAD_REQUEST,
        bodiless=True,
        has=(b"Content-Length: 10",),
        pooled=False,
    ),
    answer(
        "an answer to HEAD with a body",
        OK + L + E + JSON,
        "6.3",
        content=b"",
        request=HEAD_REQUEST,
        bodiless=True,
        pooled=False,
    ),
    answer(
        "an answer to HEAD with chunks",
        OK + TE + E + CHUNKED,
        "6.3",
        content=b"",
        request=HEAD_REQUEST,
        bodiless=True,
        pooled=False,
    ),
    answer(
        "an answer to HEAD with half a body",
        OK + L + E + JSON[:3],
        "6.3",
        content=b"",
        request=HEAD_REQUEST,
        bodiless=True,
        pooled=False,
    ),
)

SECTIONS: dict[str, tuple[ResponseCase, ...]] = {
    "Status line": STATUS_LINE,
    "Header fields": HEADERS,
    "Content-Length": LENGTH,
    "Transfer-Encoding": TRANSFER_CODING,
    "Chunks": CHUNKS,
    "Event streams": STREAMS,
    "Interim answers": INTERIM,
    "Answers without a body": BODILESS,
}
RESPONSE_CASES = {f"{title}: {case.name}": case for title, section in SECTIONS.items() for case in section}
assert len(RESPONSE_CASES) == sum(map(len, SECTIONS.values())), "two rows have one name"

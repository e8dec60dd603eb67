"""The rows of the request and response tables, and functions that make them."""

from dataclasses import dataclass, field

BODY = b'{"model":"m","messages":[]}'
P = b"POST /v1/chat/completions HTTP/1.1\r\n"
H = b"Host: gw\r\n"
L = b"Content-Length: %d\r\n" % len(BODY)
TE = b"Transfer-Encoding: chunked\r\n"
E = b"\r\n"
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
GET = b"GET /livez HTTP/1.1\r\n"
CHAT_LINE = b"POST /v1/chat/completions HTTP/1.1"

MAX_HEADER_BYTES = 8_192
MAX_BODY_BYTES = 65_536

CODES = {
    400: "bad_request",
    404: "path_not_found",
    405: "method_not_allowed",
    413: "body_too_large",
    415: "unsupported_content_encoding",
    417: "expectation_failed",
    431: "headers_too_large",
    501: "not_implemented",
    505: "http_version_not_supported",
}


@dataclass(frozen=True)
class Forwarded:
    """The request that the worker must get: first line, body, required header lines, absent header names."""

    body: bytes = BODY
    line: bytes = CHAT_LINE
    has: tuple[bytes, ...] = ()
    lacks: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class RequestCase:
    """Bytes from a client, and their effects.

    `statuses`: of the responses, in order. `forwarded`: the requests that the worker gets, in order. `kept`: the
    connection takes another request; otherwise nothing more is read. `continues`: the number of 100 responses before
    the others if the client waits. `why`: the reason, if another choice was possible.
    """

    name: str
    raw: bytes
    statuses: tuple[int, ...]
    rule: str
    kept: bool = True
    forwarded: tuple[Forwarded, ...] = ()
    code: str | None = None
    continues: int = 0
    bodiless: bool = False
    why: str = ""


def refused(name, status, raw, rule, why="", *, kept=False, code=None, bodiless=False):
    """Answered with an error of the gateway. The worker gets no request."""
    return RequestCase(name, raw, (status,), rule, kept, code=code or CODES[status], bodiless=bodiless, why=why)


def passed(name, raw, rule, why="", *, body=BODY, line=CHAT_LINE, has=(), lacks=(), kept=True, bodiless=False):
    seen = Forwarded(body, line, has, lacks)
    return RequestCase(name, raw, (200,), rule, kept, (seen,), bodiless=bodiless, why=why)


def local(name, status, raw, rule, why="", *, kept=True, bodiless=False):
    return RequestCase(name, raw, (status,), rule, kept, bodiless=bodiless, why=why)


@dataclass(frozen=True)
class ResponseCase:
    """Bytes from a worker, and the client's view.

    `gets` is one of:

    - "answer": `status` and `content`;
    - "error": a 5xx of the gateway, with `code`;
    - "cut": the head, then a close within the body that the client can distinguish from its end;
    - "event": the stream, then an error event.

    `pooled`: the connection to the worker is reused. `closes`: the worker closes after its bytes. `kept`: after a
    response, the client's connection takes another request.
    """

    name: str
    raw: bytes
    gets: str
    rule: str
    status: int = 200
    content: bytes = b""
    code: str = "worker_failed"
    pooled: bool = False
    closes: bool = False
    kept: bool = True
    request: bytes = field(default=P + H + L + E + BODY)
    bodiless: bool = False
    has: tuple[bytes, ...] = ()
    lacks: tuple[bytes, ...] = ()
    why: str = ""

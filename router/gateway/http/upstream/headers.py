"""Heads that the gateway writes: requests to workers, responses to clients, and its own replies."""

from __future__ import annotations

import math
import re
from email.utils import formatdate
from http import HTTPStatus

import msgspec

from backends.worker import Endpoint
from router.errors import ErrorKind, RequestError
from router.gateway.http.upstream.response_head import ResponseHead
from router.requests.request_head import LENGTH_LINE, RequestHead

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_TO_WORKER = HOP_BY_HOP | {b"expect"}
_TO_WORKER_WITH_ID = _TO_WORKER | {b"x-request-id"}
_TO_CLIENT = HOP_BY_HOP - {b"transfer-encoding", b"trailer"} | {b"x-request-id"}
_TO_CLIENT_REFRAMED = HOP_BY_HOP | {b"x-request-id", b"content-length"}
# Headers that change the meaning of a message. They are treated as if Connection did not name them.
_NOT_DROPPED = frozenset(
    {
        b"content-length",
        b"host",
        b"content-type",
        b"content-encoding",
        b"authorization",
        b"transfer-encoding",
        b"trailer",
    }
)
_CREDENTIALS = frozenset({b"authorization", b"x-api-key"})
_REASONS = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
# Default Retry-After of a 503 (RFC 9110 section 10.2.3 counts whole seconds).
RETRY_AFTER_S = 1.0


def _dropped(always: frozenset[bytes], fields: dict[bytes, bytes]) -> frozenset[bytes]:
    """Return the headers to drop: `always`, and the headers that Connection names."""
    connection = fields.get(b"connection")
    if connection is None or connection.lower() in (b"keep-alive", b"close", b"upgrade"):
        return always
    named = {token.strip(b" \t").lower() for token in connection.split(b",")}
    return always | (named - _NOT_DROPPED)


class _Prepared(msgspec.Struct, frozen=True, gc=False):
    """A head for one worker, cut at the body's length and at the request id."""

    endpoint: Endpoint
    authorization: bytes | None
    withheld: frozenset[bytes]
    rank: int | None
    before: bytes
    between: bytes
    after: bytes


def request_to_worker(
    head: RequestHead,
    body_bytes: int,
    endpoint: Endpoint,
    request_id: bytes,
    rank: int | None,
    peer: bytes,
    upgrade: bool,
    *,
    plain: bool,
    authorization: bytes | None,
    scheme: bytes,
    worker: str,
    withheld: frozenset[bytes],
    via: bytes,
) -> bytes:
    """Return the head for a worker: the client's lines as received, without hop-by-hop ones, then our own lines.

    Host is the worker's, unless the endpoint says otherwise. `via` is the gateway's line, which ends circles.

    `plain` drops Accept-Encoding, because the gateway reads the response. `authorization` is a header line that
    replaces the client's credentials; None forwards them, empty bytes drop them. `withheld` names headers that no
    worker gets. `worker` identifies endpoint and rank. If a head differs from the last one for this worker only in
    length and request id, it is made from that one.
    """
    shared = None if plain or upgrade or b"x-request-id" in head.fields else head.forwarded
    prepared = shared.get(worker) if shared is not None else None
    if (
        prepared is not None
        and prepared.endpoint is endpoint
        and prepared.authorization is authorization
        and prepared.withheld is withheld
        and prepared.rank == rank
    ):
        return b"%b%d%b%b%b" % (prepared.before, body_bytes, prepared.between, request_id, prepared.after)
    whole = _written(
        head, body_bytes, endpoint, request_id, rank, peer, upgrade, plain, authorization, scheme, withheld, via
    )
    if shared is not None:
        cut = _cut(whole, body_bytes, request_id)
        if cut is not None:
            shared[worker] = _Prepared(endpoint, authorization, withheld, rank, *cut)
    return whole


def _cut(whole: bytes, body_bytes: int, request_id: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Cut `whole` in three, or return None if its Content-Length is missing or in an unusual form."""
    length = re.search(rb"\r\n[Cc]ontent-[Ll]ength: ?(%d)\r\n" % body_bytes, whole)
    place = whole.rfind(b"\r\nX-Request-Id: " + request_id + b"\r\n")
    if length is None or place < length.end(1):
        return None
    start = place + len(b"\r\nX-Request-Id: ")
    return whole[: length.start(1)], whole[length.end(1) : start], whole[start + len(request_id) :]


def _written(
    head: RequestHead,
    body_bytes: int,
    endpoint: Endpoint,
    request_id: bytes,
    rank: int | None,
    peer: bytes,
    upgrade: bool,
    plain: bool,
    authorization: bytes | None,
    scheme: bytes,
    withheld: frozenset[bytes],
    via: bytes,
) -> bytes:
    own_id = head.fields.get(b"x-request-id") != request_id
    dropped = _dropped(_TO_WORKER_WITH_ID if own_id else _TO_WORKER, head.fields) | withheld
    if upgrade:
        dropped -= {b"connection", b"upgrade"}
    if rank is not None:
        dropped |= {b"x-data-parallel-rank"}
    host = _host(head, endpoint)
    if host is not None:
        dropped |= {b"host"}
    rewritten = not head.chunked and head.fields.get(b"content-length", b"0") != b"%d" % body_bytes
    if rewritten:
        dropped |= {b"content-length"}
    if plain:
        dropped |= {b"accept-encoding"}
    if authorization is not None:
        dropped |= _CREDENTIALS
    parts = [head.method.encode("ascii") + b" " + endpoint.base_path.encode("ascii") + head.target + b" HTTP/1.1"]
    parts += [line for name, line in head.lines if name not in dropped]
    if host is not None:
        parts.insert(1, b"Host: " + host)
    if head.chunked or rewritten:
        parts.append(b"Content-Length: %d" % body_bytes)
    if b"x-request-id" in dropped:
        parts.append(b"X-Request-Id: " + request_id)
    if rank is not None:
        parts.append(b"X-data-parallel-rank: %d" % rank)
    if authorization:
        parts.append(authorization)
    if via:
        parts.append(via)
    return b"\r\n".join(parts + _forwarded(head, peer, scheme)) + b"\r\n\r\n"


def _host(head: RequestHead, endpoint: Endpoint) -> bytes | None:
    if endpoint.host_header is not None:
        return endpoint.sent_host.encode("ascii")
    if head.authority is None and b"host" in head.fields:
        return None
    return head.authority or endpoint.sent_host.encode("ascii")


def _forwarded(head: RequestHead, peer: bytes, scheme: bytes) -> list[bytes]:
    # A second X-Forwarded-For line extends the client's list without a change to it (RFC 9110 section 5.2).
    lines = [b"X-Forwarded-For: " + peer] if peer else []
    if b"x-forwarded-proto" not in head.fields:
        lines.append(b"X-Forwarded-Proto: " + scheme)
    host = head.authority or head.fields.get(b"host")
    if b"x-forwarded-host" not in head.fields and host:
        lines.append(b"X-Forwarded-Host: " + host)
    return lines


def response_to_client(response: ResponseHead, extra: bytes, *, reframed: bool, own_cors: bool) -> bytes:
    """Return a worker's head as the client gets it. `extra` holds complete header lines of the gateway.

    `reframed` drops the worker's framing headers, for a caller that adds its own.
    """
    shared = None if reframed else response.passed
    if shared is None:
        return _passed(response, reframed=reframed, own_cors=own_cors) + extra + b"\r\n"
    prepared = shared.get(own_cors)
    if prepared is None:
        whole = _passed(response, reframed=False, own_cors=own_cors)
        length = LENGTH_LINE.search(whole)
        assert length is not None, "RepeatedResponse keeps no other heads"
        prepared = shared[own_cors] = whole[: length.start(1)], whole[length.end(1) :]
    return b"%b%d%b%b\r\n" % (prepared[0], response.length or 0, prepared[1], extra)


def _passed(response: ResponseHead, *, reframed: bool, own_cors: bool) -> bytes:
    dropped = _dropped(_TO_CLIENT_REFRAMED if reframed else _TO_CLIENT, response.fields)
    if response.status == 101:
        dropped -= {b"connection", b"upgrade"}
    lines = [
        line
        for name, line in response.lines
        if name not in dropped and not (own_cors and name.startswith(b"access-control-"))
    ]
    return b"\r\n".join([b"HTTP/1.1 " + response.status_line, *lines]) + b"\r\n"


def own_reply(status: int, body: bytes, extra: bytes, *, without_body: bool) -> bytes:
    """Return a complete reply of the gateway. `body` is JSON; `extra` holds complete header lines."""
    head = b"HTTP/1.1 %d %s\r\ndate: %s\r\n" % (status, _REASONS[status], formatdate(usegmt=True).encode("ascii"))
    if status != 204:
        head += b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
    return head + extra + b"\r\n" + (b"" if without_body or status == 204 else body)


def connection_line(head: RequestHead | None, close: bool) -> bytes:
    if close:
        return b"connection: close\r\n"
    return b"connection: keep-alive\r\n" if head is not None and head.minor == 0 else b""


def retry_after(error: RequestError) -> bytes:
    """Return a Retry-After line if the error or its status asks for one, or a line that says not to retry."""
    if error.kind is ErrorKind.REQUEST_ABOVE_TOKEN_LIMIT:
        return b"x-should-retry: false\r\n"  # OpenAI's clients retry any 429 without it, here in vain
    seconds = error.retry_after_s
    if error.kind is ErrorKind.WAIT_TOO_LONG:
        line = b"" if seconds is None else b"retry-after: %d\r\n" % max(1, math.ceil(seconds))
        return b"x-should-retry: true\r\nx-warmroute-refused: %b\r\n%b" % ((error.reason or "").encode("ascii"), line)
    if seconds is None and error.kind.spec.status == 503:
        seconds = RETRY_AFTER_S
    return b"" if seconds is None else b"retry-after: %d\r\n" % max(1, math.ceil(seconds))


def chunk(piece: bytes) -> bytes:
    """Encode `piece` as one chunk. An empty piece gives nothing: an empty chunk would end the body."""
    return b"%x\r\n%s\r\n" % (len(piece), piece) if piece else b""

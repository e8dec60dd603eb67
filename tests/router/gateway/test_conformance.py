"""Shapes that RFC 9112 forbids, or that two servers could read differently, are refused and never forwarded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config.model import LimitsConfig
from router.errors import RequestError
from router.gateway.budget import BodyBudget
from router.gateway.framing import RequestFramer

BODY = b'{"model":"m","messages":[]}'
P = b"POST /v1/chat/completions HTTP/1.1\r\n"
H = b"Host: gw\r\n"
L = b"Content-Length: %d\r\n" % len(BODY)
TE = b"Transfer-Encoding: chunked\r\n"
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)

REFUSED = {
    "both lengths": (400, P + H + L + TE + b"\r\n" + CHUNKED),
    "both lengths, other order": (400, P + H + TE + L + b"\r\n" + CHUNKED),
    "two equal lengths": (400, P + H + L + L + b"\r\n" + BODY),
    "two lengths": (400, P + H + L + b"Content-Length: 3\r\n\r\n" + BODY),
    "a list of lengths": (400, P + H + b"Content-Length: 27, 27\r\n\r\n" + BODY),
    "signed length": (400, P + H + b"Content-Length: +27\r\n\r\n" + BODY),
    "negative length": (400, P + H + b"Content-Length: -1\r\n\r\n"),
    "hex length": (400, P + H + b"Content-Length: 0x1b\r\n\r\n" + BODY),
    "underscored length": (400, P + H + b"Content-Length: 2_7\r\n\r\n" + BODY),
    "empty length": (400, P + H + b"Content-Length:\r\n\r\n"),
    "overflowing length": (400, P + H + b"Content-Length: 99999999999999999999999999\r\n\r\n"),
    "identity, chunked": (400, P + H + b"Transfer-Encoding: identity, chunked\r\n\r\n" + CHUNKED),
    "identity": (400, P + H + b"Transfer-Encoding: identity\r\n\r\n"),
    "chunked twice": (400, P + H + TE + TE + b"\r\n" + CHUNKED),
    "chunked, gzip": (400, P + H + b"Transfer-Encoding: chunked, gzip\r\n\r\n" + CHUNKED),
    "empty coding": (400, P + H + b"Transfer-Encoding: , chunked\r\n\r\n" + CHUNKED),
    "gzip, chunked": (501, P + H + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKED),
    "xchunked": (501, P + H + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKED),
    "chunked on HTTP/1.0": (400, P.replace(b"1.1", b"1.0") + H + TE + b"\r\n" + CHUNKED),
    "chunk size not hex": (400, P + H + TE + b"\r\nzz\r\n"),
    "chunk size signed": (400, P + H + TE + b"\r\n+1b\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "chunk size with 0x": (400, P + H + TE + b"\r\n0x1b\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "chunk size too large": (400, P + H + TE + b"\r\nfffffffffffffffff\r\n"),
    "chunk size line with bare LF": (400, P + H + TE + b"\r\n1b\n" + BODY + b"\r\n0\r\n\r\n"),
    "chunk without its end": (400, P + H + TE + b"\r\n1b\r\n" + BODY + b"XX0\r\n\r\n"),
    "LF in a chunk extension": (400, P + H + TE + b"\r\n1b;a\nb\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "no host": (400, P + L + b"\r\n" + BODY),
    "two hosts": (400, P + H + H + L + b"\r\n" + BODY),
    "an empty length before a length": (400, P + H + b"Content-Length:\r\n" + L + b"\r\n" + BODY),
    "two empty hosts": (400, P + b"Host:\r\nHost:\r\n" + L + b"\r\n" + BODY),
    "host with a path": (400, P + b"Host: gw/evil\r\n" + L + b"\r\n" + BODY),
    "host with userinfo": (400, P + b"Host: a@b\r\n" + L + b"\r\n" + BODY),
    "obs-fold": (400, P + H + b"X-A: 1\r\n 2\r\n" + L + b"\r\n" + BODY),
    "obs-fold at the start": (400, P + b" X: 1\r\n" + H + L + b"\r\n" + BODY),
    "bare LF lines": (400, b"GET /livez HTTP/1.1\nHost: gw\n\n"),
    "one bare LF": (400, P + b"Host: gw\nX: y\r\n" + L + b"\r\n" + BODY),
    "bare CR": (400, P + H + b"X: a\rb\r\n" + L + b"\r\n" + BODY),
    "NUL in a value": (400, P + H + b"X: a\x00b\r\n" + L + b"\r\n" + BODY),
    "control in a value": (400, P + H + b"X: a\x07b\r\n" + L + b"\r\n" + BODY),
    "DEL in a value": (400, P + H + b"X: a\x7fb\r\n" + L + b"\r\n" + BODY),
    "space before the colon": (400, P + H + b"Content-Length : 27\r\n\r\n" + BODY),
    "tab before the colon": (400, P + H + b"Transfer-Encoding\t: chunked\r\n\r\n" + CHUNKED),
    "space in a name": (400, P + H + b"X Y: 1\r\n" + L + b"\r\n" + BODY),
    "no colon": (400, P + H + b"nonsense\r\n" + L + b"\r\n" + BODY),
    "empty name": (400, P + H + b": x\r\n" + L + b"\r\n" + BODY),
    "non-ASCII name": (400, P + H + b"X\xe9: x\r\n" + L + b"\r\n" + BODY),
    "two spaces in the request line": (400, b"GET  /livez HTTP/1.1\r\n" + H + b"\r\n"),
    "tab in the request line": (400, b"GET\t/livez HTTP/1.1\r\n" + H + b"\r\n"),
    "space behind the version": (400, b"GET /livez HTTP/1.1 \r\n" + H + b"\r\n"),
    "non-ASCII target": (400, b"GET /livez\xff HTTP/1.1\r\n" + H + b"\r\n"),
    "control in the target": (400, b"GET /li\x01vez HTTP/1.1\r\n" + H + b"\r\n"),
    "fragment": (400, b"GET /livez#x HTTP/1.1\r\n" + H + b"\r\n"),
    "relative target": (400, b"GET livez HTTP/1.1\r\n" + H + b"\r\n"),
    "asterisk with GET": (400, b"GET * HTTP/1.1\r\n" + H + b"\r\n"),
    "other scheme": (400, b"GET ftp://gw/livez HTTP/1.1\r\n" + H + b"\r\n"),
    "absolute without host": (400, b"GET http:///livez HTTP/1.1\r\n" + H + b"\r\n"),
    "CONNECT": (400, b"CONNECT gw:80 HTTP/1.1\r\n" + H + b"\r\n"),
    "HTTP/0.9": (400, b"GET /livez\r\n\r\n"),
    "HTTP/1.2": (505, b"GET /livez HTTP/1.2\r\n" + H + b"\r\n"),
    "HTTP/2 preface": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "lower-case version": (400, b"GET /livez http/1.1\r\n" + H + b"\r\n"),
    "unknown method": (501, b"BREW /livez HTTP/1.1\r\n" + H + b"\r\n"),
    "TLS hello": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
    "unknown expectation": (417, P + H + L + b"Expect: magic\r\n\r\n" + BODY),
    "upgrade with a chunked body": (400, P + H + TE + b"Upgrade: x\r\nConnection: upgrade\r\n\r\n" + CHUNKED),
    "not JSON": (400, P + H + b"Content-Length: 3\r\n\r\n{x}"),
    "no body": (400, P + H + b"\r\n"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_refused(rig, kit, name):
    status, raw = REFUSED[name]
    gate = await rig(kit.answer_json)
    client = await gate.connect()
    smuggled = kit.get(b"/v1/models", b"X-Request-Id: smuggled\r\n")
    client.writer.write(raw + smuggled)
    reply = await client.read()
    assert reply.status == status
    assert reply.body.startswith(b'{"error":{"message":')
    assert reply.header(b"x-request-id")
    assert gate.workers[0].requests == []
    if reply.header(b"connection") == b"close":
        assert b"smuggled" not in await client.closed()
    else:
        assert name in ("not JSON", "no body")


ACCEPTED = {
    "empty lines first": b"\r\n\r\n" + P + H + L + b"\r\n" + BODY,
    "absolute form": P.replace(b" /", b" http://gw/") + H + L + b"\r\n" + BODY,
    "absolute form, https and port": P.replace(b" /", b" HTTPS://gw:1/") + H + L + b"\r\n" + BODY,
    "chunk extensions": P + H + TE + b"\r\n1b;a=b\r\n" + BODY + b"\r\n0\r\n\r\n",
    "upper-case coding": P + H + TE.replace(b"chunked", b"Chunked") + b"\r\n" + CHUNKED,
    "IPv6 host": P + b"Host: [::1]:80\r\n" + L + b"\r\n" + BODY,
    "empty host": P + b"Host:\r\n" + L + b"\r\n" + BODY,
    "no host in HTTP/1.0": P.replace(b"1.1", b"1.0") + L + b"\r\n" + BODY,
    "obs-text": P + H + b"X: \xe9\xff\r\n" + L + b"\r\n" + BODY,
    "empty value": P + H + b"X:\r\n" + L + b"\r\n" + BODY,
    "leading zeros": P + H + b"Content-Length: 0027\r\n\r\n" + BODY,
    "unwanted upgrade": P + H + L + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n" + BODY,
}


@pytest.mark.parametrize("name", ACCEPTED)
async def test_accepted(rig, kit, name):
    gate = await rig(kit.answer_json)
    assert (await gate.ask(ACCEPTED[name])).status == 200
    seen = gate.workers[0].requests[0]
    assert seen.body == BODY
    assert seen.header(b"upgrade") is None


async def test_requests_behind_a_chunked_one_need_a_new_connection(rig, kit):
    gate = await rig(kit.answer_json)
    client = await gate.connect()
    client.writer.write((P + H + TE + b"\r\n" + CHUNKED) * 2)
    reply = await client.read()
    assert (reply.status, reply.header(b"connection")) == (200, b"close")
    assert await client.closed() == b""
    assert [seen.body for seen in gate.workers[0].requests] == [BODY]


def outcome(pieces):
    """What a framer makes of bytes in these pieces: requests, and the status that ended it."""
    limits = LimitsConfig(max_header_bytes=2_000, max_body_bytes=2_000)
    framer = RequestFramer(limits, BodyBudget(limits), lambda head: None)
    requests = []
    try:
        for piece in pieces:
            framer.feed(piece)
            while (request := framer.next()) is not None:
                requests.append((request[0].target, request[0].lines, request[1]))
    except RequestError as error:
        return requests, error.kind
    return requests, framer.stage


MATERIAL = [raw for _, raw in REFUSED.values()] + list(ACCEPTED.values())


@given(st.lists(st.sampled_from(MATERIAL), min_size=1, max_size=3), st.lists(st.integers(1, 60), min_size=1))
def test_where_bytes_are_split_changes_nothing(materials, sizes):
    raw = b"".join(materials)
    pieces, start = [], 0
    for index in range(len(raw)):
        if start >= len(raw):
            break
        size = sizes[index % len(sizes)]
        pieces.append(raw[start : start + size])
        start += size
    whole_requests, whole_end = outcome([raw])
    split_requests, split_end = outcome(pieces)
    shared = min(len(whole_requests), len(split_requests))
    assert whole_requests[:shared] == split_requests[:shared]
    # only what stands behind a chunked body may be cut short: it needs a new connection when it came along with it
    if not any(b"ransfer-" in material for material in materials[:-1]):
        assert (whole_requests, whole_end) == (split_requests, split_end)


@given(st.binary(max_size=300))
def test_no_bytes_break_the_framer(raw):
    outcome([raw])
    outcome([b"GET / HTTP/1.1\r\n" + raw])
    outcome([P + H + TE + b"\r\n" + raw])

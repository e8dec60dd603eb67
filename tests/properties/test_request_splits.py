"""The places at which reads divide a client's bytes change neither the bytes that a worker gets nor the client's
answer.
"""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.conformance.corpus import BODY, MAX_BODY_BYTES, MAX_HEADER_BYTES, H, P
from tests.conformance.request_cases import REQUEST_CASES
from tests.properties.harness import CUTS, World, byte_by_byte, cut_up
from tests.properties.strict import read_all

LIMITS = {"max_header_bytes": MAX_HEADER_BYTES, "max_body_bytes": MAX_BODY_BYTES}
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
_OURS = re.compile(rb"(?i)(x-request-id|date): [^\r]*")
# Two checks may find the same fault, each with its own message.
_WORDS = re.compile(rb'content-length: \d+(\r\n(?:.+\r\n)*\r\n\{"error":\{"message":")[^"]*"')
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def exchange(pieces):
    """Return the bytes that the worker got, the bytes that the client got, and whether the client's connection was
    closed.
    """
    world = World(limits=LIMITS)
    client = world.client()
    answered = {}
    for piece in pieces:
        client.send(piece)
        serve(world, answered)
    requests = [message for dial in world.dials for message in read_all(dial.got, answer=False)[0]]
    assert all(not read_all(dial.got, answer=False)[1] for dial in world.dials)
    outcome = (
        [(message.start, strip(message.lines), message.content) for message in requests],
        _WORDS.sub(rb"\1", _OURS.sub(rb"\1:", client.got.replace(_CONTINUE, b""))),
        client.closed,
        client.protocol._framer.pending_bytes if not client.closed else 0,
    )
    client.leave()
    assert world.at_rest()
    assert world.failures == []
    return outcome


def strip(lines):
    return [line for line in lines if not _OURS.match(line)]


def serve(world, answered):
    """Let the worker answer each whole request at once."""
    while True:
        waiting = [
            dial
            for dial in world.dials
            if not dial.closed and len(read_all(dial.got, answer=False)[0]) > answered.get(dial, 0)
        ]
        if not waiting:
            return
        for dial in waiting:
            answered[dial] = answered.get(dial, 0) + 1
            head = read_all(dial.got, answer=False)[0][-1].start.startswith(b"HEAD")
            dial.send(ANSWER[:-2] if head else ANSWER)


@pytest.mark.parametrize("name", REQUEST_CASES)
def test_each_row_byte_by_byte(name):
    raw = REQUEST_CASES[name].raw
    whole = exchange([raw])
    assert exchange(byte_by_byte(raw)) == whole
    assert len(whole[0]) == len(REQUEST_CASES[name].forwarded)


SHORT = [case.raw for case in REQUEST_CASES.values() if len(case.raw) < 2_000]


@given(st.lists(st.sampled_from(SHORT), min_size=1, max_size=4), CUTS)
def test_rows_behind_one_another(raws, cuts):
    raw = b"".join(raws)
    assert exchange(cut_up(raw, cuts)) == exchange([raw])


CONTENT = st.binary(max_size=60) | st.sampled_from([b"\r\n", b"0\r\n\r\n", P + H + b"\r\n", BODY])
EXTENSION = st.sampled_from([b"", b"", b";a", b";a=b", b' ; a = "b;\\"c"', b";a;b=c"])
TRAILER = st.sampled_from([b"", b"", b"X: y\r\n", b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"])


@st.composite
def chunked(draw):
    contents = [content for content in draw(st.lists(CONTENT, max_size=5)) if content]
    raw = b""
    for content in contents:
        size = draw(st.sampled_from([b"%x", b"%X", b"00%x"])) % len(content)
        raw += size + draw(EXTENSION) + b"\r\n" + content + b"\r\n"
    return b"Transfer-Encoding: chunked\r\n\r\n" + raw + b"0" + draw(EXTENSION) + b"\r\n" + draw(
        TRAILER
    ) + b"\r\n", b"".join(contents)


LENGTHED = CONTENT.map(lambda content: (b"Content-Length: %d\r\n\r\n" % len(content) + content, content))
TOKENS = st.text("abcXYZ019!#$%&'*+-.^_`|~", min_size=1, max_size=8).map(str.encode)
VALUES = st.binary(max_size=12).map(lambda raw: re.sub(rb"[^\t\x20-\x7e\x80-\xff]", b"", raw))
FIELDS = st.lists(st.tuples(TOKENS, VALUES).map(lambda pair: b"X-" + pair[0] + b":" + pair[1]), max_size=5)


def head(lines):
    return b"POST /classify HTTP/1.1\r\nHost: gw\r\n" + b"".join(line + b"\r\n" for line in lines)


@given(st.lists(st.tuples(FIELDS, chunked() | LENGTHED), min_size=1, max_size=4), CUTS)
@example([([], (b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b""))] * 2, [1])
def test_every_request_arrives_once_and_whole(requests, cuts):
    raw = b"".join(head(lines) + body for lines, (body, _) in requests)
    got, client_got, closed, pending = exchange(cut_up(raw, cuts))
    assert [content for _, _, content in got] == [content for _, (_, content) in requests]
    for (_, got_lines, _), (lines, _) in zip(got, requests, strict=True):
        assert [line for line in got_lines if line.startswith(b"X-") and not line.startswith(b"X-Forwarded-")] == lines
    assert len(read_all(client_got, answer=True)[0]) == len(requests)
    assert (closed, pending) == (False, 0)


def without_length(request):
    """Remove the Content-Length line, which the gateway may rewrite and move."""
    start, lines, content = request
    return start, [line for line in lines if not line.lower().startswith(b"content-length:")], content


LENGTH_LINE = st.sampled_from(
    [b"Content-Length: %d", b"content-length:%d", b"CONTENT-LENGTH: 00%d \t", b"Content-Length:  %d"]
)
EXTRA = st.sampled_from(
    [b"", b"X-Request-Id: mine\r\n", b"X-Length: Content-Length: 3\r\n", b"Connection: x-a\r\nX-A: 1\r\n"]
)


@given(FIELDS, EXTRA, LENGTH_LINE, st.lists(CONTENT, min_size=2, max_size=5), st.booleans(), CUTS)
def test_a_head_that_is_repeated_but_for_its_length(lines, extra, length_line, contents, last, cuts):
    before = head(lines) + extra

    def written(content):
        length = length_line % len(content) + b"\r\n"
        return before + (b"Z: 1\r\n" + length if last else length + b"Z: 1\r\n") + b"\r\n" + content

    got, client_got, closed, _ = exchange(cut_up(b"".join(map(written, contents)), cuts))
    assert [content for _, _, content in got] == contents
    assert (len(read_all(client_got, answer=True)[0]), closed) == (len(contents), False)
    for each, content in zip(got, contents, strict=True):
        (alone,) = exchange([written(content)])[0]
        assert without_length(each) == without_length(alone)


@given(FIELDS, EXTRA, LENGTH_LINE, st.lists(st.integers(0, 3), min_size=2, max_size=5), CUTS)
def test_heads_that_repeat_the_last_one_in_part(lines, extra, length_line, endings, cuts):
    """Heads of one connection that are equal up to Content-Length may be shorter or longer after it."""
    before = head(lines) + extra
    after = [b"", b"Accept: */*\r\n", b"Y: 1\r\nAccept: */*\r\n", b"X-Source: a long value\r\nAccept: */*\r\n"]
    pieces = b"".join(before + length_line % 2 + b"\r\n" + after[ending] + b"\r\n{}" for ending in endings)
    got, client_got, closed, _ = exchange(cut_up(pieces, cuts))
    assert [content for _, _, content in got] == [b"{}"] * len(endings)
    assert (len(read_all(client_got, answer=True)[0]), closed) == (len(endings), False)

import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config.model import LimitsConfig
from router.gateway.http.client.request_framer import RequestFramer
from router.requests.body_buffer_limit import BodyBufferLimit
from router.requests.request_head import has_bare_lf
from tests.conformance.corpus import H, P


def framer():
    limits = LimitsConfig()
    return RequestFramer(limits, BodyBufferLimit(limits), lambda head: None)


@given(st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a"]), max_size=12).map(b"".join), st.integers(0, 12))
def test_a_line_feed_without_carriage_return_is_found(text, start):
    start = min(start, len(text))
    assert has_bare_lf(text, start) == (re.compile(rb"(?<!\r)\n").search(text, start) is not None)


def peak_bytes(pieces):
    reads = framer()
    tracemalloc.start()
    try:
        for piece in pieces:
            reads.feed(piece)
            reads.next()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "pieces",
    [
        [P + H + b"Transfer-Encoding: chunked\r\n\r\n", *[b"2\r\nab\r\n" * 1_000] * 50],
        [P + H + b"Content-Length: 999999\r\n\r\n", *[b"%02d" % (index % 100) for index in range(30_000)]],
    ],
    ids=["chunks", "length"],
)
def test_a_body_in_small_pieces_takes_about_its_own_size(pieces):
    body_bytes = 100_000 if b"chunked" in pieces[0] else 60_000
    assert peak_bytes(pieces) < 3 * body_bytes + 200_000

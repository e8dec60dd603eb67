import re
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config.model import LimitsConfig
from router.errors import RequestError
from router.gateway.http.body_buffer_limit import BodyBufferLimit
from router.gateway.http.request_framer import RequestFramer
from router.gateway.http.request_head import has_bare_lf
from router.gateway.http.sse import INTRODUCTION_BYTES, FirstEvent
from router.gateway.rewrites.usage_frame import HELD_BYTES, UsageFrame
from tests.conformance.corpus import H, P

# Hundreds of times what each of these takes, and a small part of what they took, or would take, as squares.
CPU_S = 2.0
READ_BYTES = 262_144


def framer():
    limits = LimitsConfig()
    return RequestFramer(limits, BodyBufferLimit(limits), lambda head: None)


def fed(*pieces):
    reads, requests = framer(), []
    for piece in pieces:
        reads.feed(piece)
        while (request := reads.next()) is not None or reads.stopped:
            if request is not None:
                requests.append(request)
    return requests


@pytest.fixture
def little_cpu():
    began_s = time.process_time()
    yield
    assert time.process_time() - began_s < CPU_S


@pytest.mark.usefixtures("little_cpu")
def test_empty_lines_cost_little_cpu():
    assert fed(*[b"\r\n" * (READ_BYTES // 2)] * 20) == []


@pytest.mark.usefixtures("little_cpu")
def test_repeated_headers_cost_little_cpu():
    for _ in range(20):
        with pytest.raises(RequestError, match="header lines"):
            fed(P + H + b"a:\r\n" * 16_000 + b"\r\n")


@pytest.mark.usefixtures("little_cpu")
def test_a_head_in_single_bytes_costs_little_cpu():
    raw = P + H + b"X: " + b"x" * 30_000
    assert fed(*(raw[index : index + 1] for index in range(len(raw)))) == []


@pytest.mark.usefixtures("little_cpu")
def test_half_heads_cost_little_cpu():
    """New clients wait for as long as 2,000 of them take, which was 1.4 s."""
    half = P + H + (b"X: " + b"x" * 1_000 + b"\r\n") * 59
    for _ in range(5_000):
        assert fed(half) == []


@given(st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a"]), max_size=12).map(b"".join), st.integers(0, 12))
def test_a_line_feed_without_carriage_return_is_found(text, start):
    start = min(start, len(text))
    assert has_bare_lf(text, start) == (re.compile(rb"(?<!\r)\n").search(text, start) is not None)


@pytest.mark.usefixtures("little_cpu")
def test_small_chunks_in_one_read_cost_little_cpu():
    (request,) = fed(P + H + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 60_000 + b"0\r\n\r\n")
    assert request[1] == b"x" * 60_000


@pytest.mark.usefixtures("little_cpu")
def test_a_first_event_in_single_bytes_costs_little_cpu():
    first = FirstEvent()
    assert not any(first.feed(b"x") for _ in range(30_000))


@pytest.mark.usefixtures("little_cpu")
def test_introductory_events_in_small_pieces_cost_little_cpu():
    first = FirstEvent()
    assert first.feed(b"event: response.created\ndata: ") is False
    assert not any(first.feed(b"x" * 500) for _ in range(INTRODUCTION_BYTES // 500 - 1))


@pytest.mark.usefixtures("little_cpu")
def test_a_buffered_event_in_small_pieces_costs_little_cpu():
    shown = UsageFrame(None)
    assert not any(shown.feed(b"x" * 50) for _ in range(HELD_BYTES // 50))
    assert len(shown.rest()) > HELD_BYTES - 50


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

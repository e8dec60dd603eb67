import pytest

from router.config.model import LimitsConfig
from router.errors import ErrorKind, RequestError
from router.gateway.http.client.request_framer import RequestFramer
from router.requests.body_buffer_limit import RESERVED_PART, SMALL_BODY_BYTES, BodyBufferLimit

LIMIT_BYTES = 3_200_000
LARGE_BYTES = LIMIT_BYTES - LIMIT_BYTES // RESERVED_PART


@pytest.fixture
def budget():
    return BodyBufferLimit(LimitsConfig(max_body_bytes=1_000_000, max_buffered_body_bytes=LIMIT_BYTES))


def test_large_bodies_leave_the_reserve_to_small_ones(budget):
    for _ in range(3):
        budget.take(1_000_000, 1_000_000)
    budget.take(LARGE_BYTES - 3_000_000, 1_000_000)
    with pytest.raises(RequestError) as refused:
        budget.take(1, SMALL_BODY_BYTES + 1)
    assert refused.value.kind is ErrorKind.TOO_MANY_REQUESTS
    with pytest.raises(RequestError):
        budget.check(SMALL_BODY_BYTES + 1)
    assert not budget.lend(1)
    budget.check(SMALL_BODY_BYTES)
    budget.take(SMALL_BODY_BYTES, SMALL_BODY_BYTES)
    budget.take(LIMIT_BYTES - budget.used_bytes, 1)
    with pytest.raises(RequestError):
        budget.take(1, 1)
    assert (budget.used_bytes, budget.refused) == (LIMIT_BYTES, 3)


def test_a_body_as_large_as_the_limit_fits_when_nothing_is_used():
    budget = BodyBufferLimit(LimitsConfig(max_body_bytes=1_000_000, max_buffered_body_bytes=500_000))
    budget.check(500_000)
    budget.take(500_000, 500_000)
    with pytest.raises(RequestError) as refused:
        budget.check(500_001)
    assert refused.value.kind is ErrorKind.BODY_TOO_LARGE


def test_a_large_body_counts_as_large_from_its_first_piece(budget):
    budget.take(LARGE_BYTES, 1_000_000)
    limits = LimitsConfig()
    large = RequestFramer(limits, budget, lambda head: None)
    large.feed(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n" + b"x")
    with pytest.raises(RequestError):
        large.next()
    small = RequestFramer(limits, budget, lambda head: None)
    small.feed(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n" + b"x" * 9_000)
    assert small.next()[1] == b"x" * 9_000


def test_a_body_in_pieces_is_joined_without_a_copy(budget):
    framer = RequestFramer(LimitsConfig(), budget, lambda head: None)
    framer.feed(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n")
    assert framer.next() is None
    for number in range(2):
        framer.feed(bytes([65 + number]) * 1_000)
        assert framer.next() is None
    framer.feed(b"C" * 1_000 + b"GET")
    assert framer.next()[1] == b"A" * 1_000 + b"B" * 1_000 + b"C" * 1_000
    assert framer.pending_bytes == 3

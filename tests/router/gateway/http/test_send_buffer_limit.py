import pytest

from router.config.model import LimitsConfig
from router.gateway.http.send_buffer_limit import SendBufferLimit


class Reader:
    def __init__(self, unsent_bytes=1_000_000):
        self.cut = 0
        self.unsent_bytes = unsent_bytes

    def allow_unsent(self, size_bytes):
        raise AssertionError("not its business")

    def cut_off(self):
        self.cut += 1


@pytest.fixture
def unsent():
    return SendBufferLimit(LimitsConfig(max_buffered_response_bytes=1_000), 100)


def test_the_allowance_shrinks_at_half_and_grows_back_at_a_quarter(unsent):
    readers = [Reader() for _ in range(6)]
    assert [unsent.paused(reader, 100) for reader in readers] == [False, False, False, False, False, True]
    assert (unsent.used_bytes, unsent.allowance_bytes) == (600, 0)
    assert [unsent.resumed(reader) for reader in readers[:4]] == [False, False, False, True]
    assert (unsent.used_bytes, unsent.allowance_bytes) == (200, 100)


def test_above_the_limit_the_longest_paused_reader_is_closed(unsent):
    readers = [Reader() for _ in range(5)]
    for reader in readers:
        unsent.paused(reader, 300)
    assert [reader.cut for reader in readers] == [1, 1, 0, 0, 0]
    assert (unsent.used_bytes, unsent.cut) == (900, 2)
    for reader in readers:
        unsent.resumed(reader)  # closed readers report it when their connections are lost
    assert unsent.used_bytes == 0


def test_a_reader_that_resumes_moves_to_the_end_of_the_queue(unsent):
    first, second, third = Reader(), Reader(), Reader()
    unsent.paused(first, 400)
    unsent.paused(second, 400)
    unsent.resumed(first)
    unsent.paused(first, 400)
    unsent.paused(third, 400)
    assert (first.cut, second.cut, third.cut) == (0, 1, 0)


def test_a_reader_that_has_read_since_is_spared(unsent):
    reading, stalled, third = Reader(), Reader(), Reader()
    unsent.paused(reading, 400)
    unsent.paused(stalled, 400)
    reading.unsent_bytes = 300
    unsent.paused(third, 400)
    assert (reading.cut, stalled.cut, third.cut) == (0, 1, 0)
    assert unsent.used_bytes == 700


def test_a_single_reader_above_the_limit_is_closed(unsent):
    reader = Reader()
    unsent.paused(reader, 1_001)
    assert (reader.cut, unsent.used_bytes, unsent.allowance_bytes) == (1, 0, 100)

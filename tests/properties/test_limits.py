"""The fuzz tests' own limits stop what they are there to stop."""

import re

import pytest

from tests.properties.limits import cpu_limit, grown, limited, linear_cpu, memory_limit


def spin():
    while True:
        pass


def test_an_endless_loop_is_interrupted():
    with pytest.raises(AssertionError, match="too much CPU"), cpu_limit(0.05):
        spin()


def test_a_regular_expression_is_interrupted():
    with pytest.raises(AssertionError, match="too much CPU"), cpu_limit(0.05):
        re.match(rb"(a+)+b", b"a" * 64)


def test_a_check_within_its_time_returns():
    assert limited(lambda value: value + 1)(1) == 2


def test_memory_that_is_kept_is_found():
    kept = []
    with pytest.raises(AssertionError, match="kept"), memory_limit():
        kept.append(b"\x01" * (128 << 20))


def test_memory_that_was_taken_and_given_back_is_found():
    with pytest.raises(AssertionError, match="grew"), memory_limit():
        assert len(b"\x01" * (300 << 20))


def test_memory_beyond_all_bounds_is_refused():
    with memory_limit(), pytest.raises(MemoryError):
        bytearray(2 << 30)


def test_a_square_is_found():
    raw = grown(b"", b"a", b"")[:40_000]
    with pytest.raises(AssertionError, match="CPU seconds"), linear_cpu(len(raw)):
        re.search(rb"a*b", raw)


def test_what_grows_with_its_length_passes():
    raw = grown(b"", b"a", b"")
    with linear_cpu(len(raw)):
        assert re.search(rb"(?<!a)a*+b", raw) is None

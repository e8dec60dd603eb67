"""The fuzz tests' limits stop the examples that exceed them."""

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


def test_kept_memory_is_found():
    kept = []
    with pytest.raises(AssertionError, match="kept"), memory_limit():
        kept.append(b"\x01" * (128 << 20))


def test_released_memory_is_found():
    with pytest.raises(AssertionError, match="grew"), memory_limit():
        assert len(b"\x01" * (300 << 20))


def test_unbounded_memory_is_refused():
    with memory_limit(), pytest.raises(MemoryError):
        bytearray(2 << 30)


def test_quadratic_cost_is_found():
    raw = grown(b"", b"a", b"")[:40_000]
    with pytest.raises(AssertionError, match="CPU seconds"), linear_cpu(len(raw)):
        re.search(rb"a*b", raw)


def test_linear_cost_passes():
    raw = grown(b"", b"a", b"")
    with linear_cpu(len(raw)):
        assert re.search(rb"(?<!a)a*+b", raw) is None

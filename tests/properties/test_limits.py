"""The fuzz tests' limits stop the examples that exceed them."""

import re
import subprocess
import sys

import pytest

from tests.properties.limits import cpu_limit, grown, limited, linear_cpu


def spin():
    while True:
        pass


@pytest.mark.parametrize("endless", [spin, lambda: re.match(rb"(a+)+b", b"a" * 64)], ids=["loop", "expression"])
def test_an_endless_example_is_interrupted(endless):
    with pytest.raises(AssertionError, match="too much CPU"), cpu_limit(0.05):
        endless()


def test_a_check_within_its_time_returns():
    assert limited(lambda value: value + 1)(1) == 2


@pytest.mark.parametrize(
    ("taken", "found"),
    [
        ("kept = bytes([1]) * (128 << 20)", "MB were kept"),
        ("bytes([1]) * (300 << 20)", "the process grew by"),
        ("bytearray(2 << 30)", "MemoryError"),
    ],
    ids=["kept", "released", "unbounded"],
)
def test_memory_is_found(taken, found):
    earlier = "[bytes(700) for _ in range(400_000)]"  # freed, and still the allocator's
    code = f"from tests.properties.limits import memory_limit\n{earlier}\nwith memory_limit():\n    {taken}\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found in ended.stderr.splitlines()[-1]


def test_quadratic_cost_is_found():
    raw = grown(b"", b"a", b"")[:40_000]
    with pytest.raises(AssertionError, match="CPU seconds"), linear_cpu(len(raw)):
        re.search(rb"a*b", raw)
    raw = grown(b"", b"a", b"")
    with linear_cpu(len(raw)):
        assert re.search(rb"(?<!a)a*+b", raw) is None

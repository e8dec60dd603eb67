import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.properties.limits import cpu_limit, grown, limited, linear_cpu

ROOT = Path(__file__).parents[2]


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


def in_a_new_process(block):
    """Run the block under `memory_limit`; return the last line of standard error.

    What a process has freed and not returned hides what it allocates next, so memory is judged in a process that has
    not run other tests.
    """
    program = f"from tests.properties.limits import memory_limit\nwith memory_limit():\n    {block}"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    return "".join(done.stderr.splitlines()[-1:])


def test_kept_memory_is_found():
    assert "128 MB were kept" in in_a_new_process("kept = b'\\1' * (128 << 20)")


def test_released_memory_is_found():
    assert "the process grew by" in in_a_new_process("assert b'\\1' * (300 << 20)")


def test_unbounded_memory_is_refused():
    assert "MemoryError" in in_a_new_process("bytearray(2 << 30)")


def test_little_memory_passes():
    assert in_a_new_process("kept = b'\\1' * (8 << 20)") == ""


def test_quadratic_cost_is_found():
    raw = grown(b"", b"a", b"")[:40_000]
    with pytest.raises(AssertionError, match="CPU seconds"), linear_cpu(len(raw)):
        re.search(rb"a*b", raw)


def test_linear_cost_passes():
    raw = grown(b"", b"a", b"")
    with linear_cpu(len(raw)):
        assert re.search(rb"(?<!a)a*+b", raw) is None

"""Limits for fuzzing: CPU time for one example, memory for a whole module.

Wall-clock time depends on the load of the machine, so the limit is on the process's CPU time. An endless example is
interrupted. An example that takes much memory meets MemoryError before the machine does.
"""

import resource
import signal
import time
from contextlib import contextmanager
from functools import wraps

from tests.support.memory import peak_bytes, resident_bytes, start_peak, status_bytes

EXAMPLE_CPU_S = 2.0
"""Hundreds of times the time of a normal example."""
ALLOWED_DATA_BYTES = 1 << 30
"""Largest additional memory that may be requested."""
PEAK_BYTES = 256 << 20
"""Largest growth of the resident memory meanwhile, including Hypothesis and the harness."""
KEPT_BYTES = 96 << 20
"""Largest growth afterwards, once all garbage is collected."""


def _overdue(number, frame):
    raise AssertionError("an example takes too much CPU time")


@contextmanager
def cpu_limit(limit_s):
    """Interrupt work that takes more CPU time than `limit_s`."""
    before = signal.signal(signal.SIGPROF, _overdue)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def limited(check):
    """Limit each example to `EXAMPLE_CPU_S`; goes under `@given`."""

    @wraps(check)
    def within(*arguments, **named):
        with cpu_limit(EXAMPLE_CPU_S):
            return check(*arguments, **named)

    return within


@contextmanager
def memory_limit():
    """Limit the growth of the process during the block.

    Raises:
        AssertionError: the process grew beyond the limits above.
    """
    before_bytes = start_peak()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (status_bytes("VmData") + ALLOWED_DATA_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    grown_bytes = peak_bytes() - before_bytes
    kept_bytes = resident_bytes() - before_bytes
    assert grown_bytes < PEAK_BYTES, f"the process grew by {grown_bytes >> 20} MB"
    assert kept_bytes < KEPT_BYTES, f"{kept_bytes >> 20} MB were kept"


GROWN_BYTES = 400_000
"""Size of a grown example: beyond every size at which a different reader takes over."""
CPU_S_PER_BYTE = 5e-7
"""About five times the cost of the most expensive kind of JSON here, and half the cost of a quadratic reader."""
CPU_S_PER_ITEM = 2e-5
"""For a cost per item, such as an event, however short it is."""
CPU_S_AT_LEAST = 0.05


def grown(before, unit, behind):
    return before + unit * (GROWN_BYTES // max(1, len(unit))) + behind


@contextmanager
def linear_cpu(size_bytes, items=0):
    began_s = time.process_time()
    yield
    took_s = time.process_time() - began_s
    allowed_s = CPU_S_AT_LEAST + CPU_S_PER_BYTE * size_bytes + CPU_S_PER_ITEM * items
    assert took_s < allowed_s, f"{took_s:.2f} CPU seconds for {size_bytes:,} bytes"

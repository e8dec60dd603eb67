"""Limits for fuzzing: CPU time for one example, memory for a whole module.

A wall clock says nothing on a machine with other work to do, so the time is the process's own CPU time. An example that
does not end is interrupted; one that takes much memory meets MemoryError before the machine does.
"""

import gc
import resource
import signal
import time
from contextlib import contextmanager
from functools import wraps

EXAMPLE_CPU_S = 2.0
"""Hundreds of times what an example takes."""
ALLOWED_DATA_BYTES = 1 << 30
"""How much more memory than before may be asked for."""
PEAK_BYTES = 256 << 20
"""How much the resident memory may grow meanwhile, Hypothesis and the harness included."""
KEPT_BYTES = 96 << 20
"""And afterwards, once all is collected."""


def _overdue(number, frame):
    raise AssertionError("an example takes too much CPU time")


@contextmanager
def cpu_limit(limit_s):
    """Interrupt what takes more CPU time than `limit_s`."""
    before = signal.signal(signal.SIGPROF, _overdue)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def limited(check):
    """Each example within `EXAMPLE_CPU_S`; goes under `@given`."""

    @wraps(check)
    def within(*arguments, **named):
        with cpu_limit(EXAMPLE_CPU_S):
            return check(*arguments, **named)

    return within


def cpu_s(call):
    """How much CPU time `call` takes; 0 for what a process shows as none."""
    began_s = time.process_time()
    call()
    return time.process_time() - began_s


def _status_bytes(name):
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1_024


@contextmanager
def memory_limit():
    """What runs inside may not make the process grow beyond the limits above.

    Raises:
        AssertionError: it did.
    """
    gc.collect()
    with open("/proc/self/clear_refs", "w", encoding="ascii") as peak:
        peak.write("5")  # the highest resident size counts from here
    before_bytes = _status_bytes("VmRSS")
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_status_bytes("VmData") + ALLOWED_DATA_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    peak_bytes = _status_bytes("VmHWM") - before_bytes
    gc.collect()
    kept_bytes = _status_bytes("VmRSS") - before_bytes
    assert peak_bytes < PEAK_BYTES, f"the process grew by {peak_bytes >> 20} MB"
    assert kept_bytes < KEPT_BYTES, f"{kept_bytes >> 20} MB were kept"


GROWN_BYTES = 400_000
"""Size of a grown example: beyond every size up to which something is read in another way."""
CPU_S_PER_BYTE = 5e-7
"""Some five times what the most expensive kind of JSON costs here, and half of what a square has cost."""
CPU_S_PER_ITEM = 2e-5
"""For what costs by the piece, as an event does, however short it is."""
CPU_S_AT_LEAST = 0.05


def grown(before, unit, behind):
    """`unit` over and over between two ends."""
    return before + unit * (GROWN_BYTES // max(1, len(unit))) + behind


@contextmanager
def linear_cpu(size_bytes, items=0):
    """What runs inside reads `size_bytes` bytes with `items` things in them, and may take so much CPU time."""
    began_s = time.process_time()
    yield
    took_s = time.process_time() - began_s
    allowed_s = CPU_S_AT_LEAST + CPU_S_PER_BYTE * size_bytes + CPU_S_PER_ITEM * items
    assert took_s < allowed_s, f"{took_s:.2f} CPU seconds for {size_bytes:,} bytes"

"""CPU time of process trees, threads that have ended included."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil


def tree_cpu_s(pid: int) -> float:
    """User and system seconds of a process and its living children; 0 once it is gone."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    return sum(_process_cpu_s(process) for process in processes)


def _process_cpu_s(process: psutil.Process) -> float:
    # The process's own clock, as clock_getcpuclockid(3) names it on Linux: nanoseconds where cpu_times counts ticks
    # of 10 ms, which is several requests of a cheap router.
    with suppress(OSError, ValueError):
        return time.clock_gettime((~process.pid << 3) | 2)
    with suppress(psutil.NoSuchProcess):
        return float(sum(process.cpu_times()[:2]))
    return 0.0


def machine_cpu_s() -> tuple[float, float]:
    """(busy, all) CPU seconds of the whole machine so far."""
    times = psutil.cpu_times()
    waiting = times.idle + getattr(times, "iowait", 0.0)
    # a guest's time is counted in its host's user time already
    everything = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return everything - waiting, everything

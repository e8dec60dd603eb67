"""CPU time of process trees, including threads that have ended."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil


def tree_cpu_s(pid: int) -> float:
    """Return user and system seconds of a process and its living children; 0 after its end."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    return sum(_process_cpu_s(process) for process in processes)


def _process_cpu_s(process: psutil.Process) -> float:
    # Read the process's own clock under its Linux id (clock_getcpuclockid(3)), which counts nanoseconds. cpu_times
    # counts ticks of 10 ms, the time of several requests of a cheap router.
    with suppress(OSError, ValueError):
        return time.clock_gettime((~process.pid << 3) | 2)
    with suppress(psutil.NoSuchProcess):
        return float(sum(process.cpu_times()[:2]))
    return 0.0

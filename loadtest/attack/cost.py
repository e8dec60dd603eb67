"""CPU time, memory and waiting of one process, from ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KB = 1_024
_NS = 1e-9

Scheduled = Mapping[str, tuple[float, float]]
"""By thread: seconds on a core, and seconds ready to run without one."""


class ProcessCost:
    """Readings of the process `pid`.

    Raises:
        OSError: at a reading, where the process is gone.
    """

    def __init__(self, pid: int) -> None:
        self._home = Path("/proc", str(pid))

    @property
    def cpu_s(self) -> float:
        """User and system time of all its threads."""
        fields = (self._home / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    @property
    def rss_bytes(self) -> int:
        """Memory in use."""
        return self._status("VmRSS")

    @property
    def peak_rss_bytes(self) -> int:
        """The most memory that was in use since `reset_peak`."""
        return self._status("VmHWM")

    def scheduled(self) -> Scheduled:
        """CPU seconds of its threads so far."""
        threads = {}
        for thread in os.listdir(self._home / "task"):
            try:
                figures = Path(self._home, "task", thread, "schedstat").read_text().split()
            except OSError:
                continue  # it may end at any time
            threads[thread] = (int(figures[0]) * _NS, int(figures[1]) * _NS)
        return threads

    def reset_peak(self) -> None:
        """Let `peak_rss_bytes` begin at the memory in use now."""
        (self._home / "clear_refs").write_text("5")

    def _status(self, name: str) -> int:
        for line in (self._home / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * _KB
        raise OSError(f"no {name} of process {self._home.name}: it has ended")


def core_wait_s(before: Scheduled, after: Scheduled) -> float:
    """The longest that any one thread was ready to run while other threads had the cores, between two readings."""
    return max(_differences(before, after, 1), default=0.0)


def own_share_s(took_s: float, before: Scheduled, after: Scheduled) -> float:
    """How much of `took_s` was the process's own doing, and not that of other programs on the same cores.

    The event loop waits for a core itself, or for a thread that does so with the interpreter's lock. Those waits follow
    each other or overlap: taking off all of them is too much, and taking off the longest too little. In between, the
    process can have worked for no longer than it had a core.
    """
    waits = _differences(before, after, 1)
    longest, all_of_them = max(waits, default=0.0), sum(waits)
    worked_s = sum(_differences(before, after, 0))
    return max(0.0, min(took_s - longest, max(took_s - all_of_them, worked_s)))


def _differences(before: Scheduled, after: Scheduled, index: int) -> list[float]:
    return [after[thread][index] - before[thread][index] for thread in after if thread in before]

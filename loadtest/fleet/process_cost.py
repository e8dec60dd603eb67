"""CPU time, memory and scheduling delays of one process, from ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KB = 1_024
_NS = 1e-9

Scheduled = Mapping[str, tuple[float, float]]
"""By thread: seconds on a core, and seconds ready to run but without a core."""


class ProcessCost:
    """Readings of the process `pid`.

    Raises:
        OSError: at a reading, if the process has ended.
    """

    def __init__(self, pid: int) -> None:
        self._home = Path("/proc", str(pid))

    @property
    def cpu_s(self) -> float:
        """Return user and system seconds of all its threads."""
        fields = (self._home / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    @property
    def rss_bytes(self) -> int:
        return self._status("VmRSS")

    @property
    def peak_rss_bytes(self) -> int:
        """Return the highest memory use since `reset_peak`."""
        return self._status("VmHWM")

    def scheduled(self) -> Scheduled:
        """Return the times of its threads so far."""
        threads = {}
        for thread in os.listdir(self._home / "task"):
            try:
                figures = Path(self._home, "task", thread, "schedstat").read_text().split()
            except OSError:
                continue  # a thread may end at any time
            threads[thread] = (int(figures[0]) * _NS, int(figures[1]) * _NS)
        return threads

    def reset_peak(self) -> None:
        """Reset `peak_rss_bytes` to the memory in use now."""
        (self._home / "clear_refs").write_text("5")

    def _status(self, name: str) -> int:
        for line in (self._home / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * _KB
        raise OSError(f"no {name} of process {self._home.name}: it has ended")


def core_wait_s(before: Scheduled, after: Scheduled) -> float:
    """Return the longest time between two readings that any thread was ready to run but had no core."""
    return max(_differences(before, after, 1), default=0.0)


def own_share_s(took_s: float, before: Scheduled, after: Scheduled) -> float:
    """Return the part of `took_s` that the process caused itself, without that of other programs on the same cores.

    The event loop waits for a core, or for another thread that holds the interpreter's lock and waits for a core. The
    waits of the threads may follow each other or overlap. So subtracting their sum can be too much, and subtracting the
    longest too little. The result is the time that the process had a core, limited to the range between the two.
    """
    waits = _differences(before, after, 1)
    longest, all_of_them = max(waits, default=0.0), sum(waits)
    worked_s = sum(_differences(before, after, 0))
    return max(0.0, min(took_s - longest, max(took_s - all_of_them, worked_s)))


def _differences(before: Scheduled, after: Scheduled, index: int) -> list[float]:
    return [after[thread][index] - before[thread][index] for thread in after if thread in before]

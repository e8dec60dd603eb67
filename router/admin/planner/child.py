"""The child process: `python -m router.admin.planner.child CPU_S WALL_S WORD...` becomes `warmroute plan WORD...`.

Its limits and its alarm go with it, and to the processes that it starts. It ends with its parent where Linux says so,
and elsewhere by its alarm.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Sequence

NICE = 10
"""A gateway on the same core gets nine times as much of it, and a run still ends on a busy machine."""
MEMORY_BYTES = 4 << 30
"""Of each process. A window of 20,000 calls takes 200 MB."""
_PR_SET_PDEATHSIG = 1


def main(cpu_s: int, wall_s: int, words: Sequence[str]) -> None:
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # a lower limit is in force
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    signal.alarm(wall_s)
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "warmroute", "plan", *words])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

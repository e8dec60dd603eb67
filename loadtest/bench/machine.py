"""The machine of a run."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec
import psutil


class Machine(msgspec.Struct, frozen=True):
    """Processor, usable cores, memory and system."""

    cpu: str
    cores: int
    memory_gib: float
    system: str
    python: str


def this_machine() -> Machine:
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        system=f"{platform.system()} {platform.release().partition('-')[0]}",
        python=platform.python_version(),
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())

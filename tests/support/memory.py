"""Memory of this process, measured so that what earlier tests freed hides no growth."""

import ctypes
import gc
import platform

_GLIBC = platform.libc_ver()[0] == "glibc"


def status_bytes(name: str) -> int:
    """A size that the kernel states for this process, such as VmRSS."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) << 10


def resident_bytes(*, garbage: bool = False) -> int:
    """The resident size without freed blocks that the allocator holds, and without garbage unless that is to count."""
    if not garbage:
        gc.collect()
    if _GLIBC:
        ctypes.CDLL(None).malloc_trim(0)
    return status_bytes("VmRSS")


def start_peak() -> int:
    """Return the resident size from which `peak_bytes` counts."""
    before = resident_bytes()
    with open("/proc/self/clear_refs", "w", encoding="ascii") as peak:
        peak.write("5")
    return before


def peak_bytes() -> int:
    """The largest resident size since `start_peak`."""
    return status_bytes("VmHWM")

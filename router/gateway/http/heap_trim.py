"""Gives memory back to the system after large bodies.

glibc keeps what is freed for later: after ordinary requests that is little, after a burst of large bodies it is
hundreds of megabytes. Elsewhere (musl, macOS) nothing is done.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("warmroute.gateway")

TRIM_AFTER_BYTES = 8_388_608
"""What large bodies have freed before it is worth while."""
PAUSE_S = 5.0
"""At least so long from one time to the next: it takes up to some 10 ms, in a thread."""
LARGE_BYTES = 262_144
"""Smaller bodies are ordinary: what they leave is used by the next ones."""
MAPPED_BYTES = 1_048_576
"""Blocks from this size on are given back as soon as they are freed. By itself glibc raises this limit to the largest
block that was ever freed, up to 32 MiB."""
_M_MMAP_THRESHOLD = -3


class HeapTrimmer:
    """Counts what large bodies free, and now and then has the allocator give it back."""

    __slots__ = ("_due", "_freed_bytes", "_loop", "_trim", "trims")

    def __init__(self, loop: asyncio.AbstractEventLoop, trim: Callable[[], object] | None) -> None:
        self._loop = loop
        self._trim = trim
        self._freed_bytes = 0
        self._due: asyncio.TimerHandle | None = None
        self.trims = 0

    def freed(self, size_bytes: int) -> None:
        """A body, or what it was decoded to, is needed no longer."""
        if size_bytes < LARGE_BYTES or self._trim is None:
            return
        self._freed_bytes += size_bytes
        if self._due is None and self._freed_bytes >= TRIM_AFTER_BYTES:
            self._due = self._loop.call_later(PAUSE_S, self._give_back)

    def _give_back(self) -> None:
        self._due = None
        self._freed_bytes = 0
        self.trims += 1
        assert self._trim is not None
        self._loop.run_in_executor(None, self._trim)

    def close(self) -> None:
        """Do nothing more."""
        if self._due is not None:
            self._due.cancel()
            self._due = None


def trimmer() -> Callable[[], object] | None:
    """glibc's malloc_trim, told to give back all it can; None where there is none."""
    libc = _glibc()
    return None if libc is None else lambda: libc.malloc_trim(0)


def map_large_blocks() -> None:
    """Have this process's large blocks given back as soon as they are freed."""
    libc = _glibc()
    if libc is not None and not libc.mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES):
        log.debug("the allocator keeps its own limit for large blocks")


def _glibc() -> Any:
    try:
        libc = ctypes.CDLL(None)
        libc.malloc_trim.argtypes = (ctypes.c_size_t,)
        libc.mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    except (OSError, AttributeError, TypeError):
        return None
    return libc

"""Returns freed memory to the system after large bodies.

glibc keeps freed memory for reuse. After a burst of large bodies that can be hundreds of megabytes. With other
allocators (musl, macOS) this module does nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("warmroute.gateway")

TRIM_AFTER_BYTES = 8_388_608
"""Bytes freed by large bodies before a trim is worth its cost."""
PAUSE_S = 5.0
"""Least time between two trims. A trim takes up to about 10 ms, in a thread."""
LARGE_BYTES = 262_144
"""Smaller bodies are not counted, because the next requests reuse their memory."""
MAPPED_BYTES = 1_048_576
"""Blocks of at least this size are returned as soon as they are freed. By default glibc raises this threshold to the
largest block ever freed, up to 32 MiB."""
_M_MMAP_THRESHOLD = -3


class HeapTrimmer:
    """Counts memory freed by large bodies, and trims the heap from time to time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, trim: Callable[[], object] | None) -> None:
        self._loop = loop
        self._trim = trim
        self._freed_bytes = 0
        self._due: asyncio.TimerHandle | None = None
        self.trims = 0

    def freed(self, size_bytes: int) -> None:
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
        if self._due is not None:
            self._due.cancel()
            self._due = None


def trimmer() -> Callable[[], object] | None:
    libc = _glibc()
    return None if libc is None else lambda: libc.malloc_trim(0)


def map_large_blocks() -> None:
    """Make glibc return large blocks of this process as soon as they are freed."""
    libc = _glibc()
    if libc is not None and not libc.mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES):
        log.debug("the allocator did not accept the threshold for large blocks")


def _glibc() -> Any:
    try:
        libc = ctypes.CDLL(None)
        libc.malloc_trim.argtypes = (ctypes.c_size_t,)
        libc.mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    except (OSError, AttributeError, TypeError):
        return None
    return libc

"""Returns the memory of large bodies to the system as soon as it is freed."""

from __future__ import annotations

import ctypes
import logging

log = logging.getLogger("warmroute.gateway")

MAPPED_BYTES = 262_144
"""Blocks of at least this size are returned as soon as they are freed. By default glibc raises this threshold to the
largest block ever freed, up to 32 MiB, and keeps what is smaller for reuse: hundreds of megabytes after a burst."""
_M_MMAP_THRESHOLD = -3


def map_large_blocks() -> None:
    """Make glibc return large blocks of this process at once. Does nothing with musl and on macOS."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
        if not libc.mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES):
            log.debug("the allocator did not accept the threshold for large blocks")
    except (OSError, AttributeError, TypeError):
        return

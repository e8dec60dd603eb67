"""Arrivals at exact times.

uvloop's own timers have a resolution of milliseconds, so a fast proxy's requests would arrive in bursts.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable, Iterator

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE = 1


class _TimerSpec(ctypes.Structure):
    """timerfd_settime(2)'s ``struct itimerspec``."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Pacer:
    """Calls `arrive` after each of `gaps_s`, on Linux to within some tens of microseconds (timerfd)."""

    def __init__(self, arrive: Callable[[], None], gaps_s: Iterator[float], start_s: float) -> None:
        self._arrive = arrive
        self._gaps_s = gaps_s
        self._due_s = start_s
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Pacer:
        self._loop.add_reader(self._fd, self._wake)
        self._arm()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the arrivals; a second call does nothing."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _wake(self) -> None:
        os.read(self._fd, 8)
        while self._due_s <= time.monotonic():
            self._arrive()
            self._due_s += next(self._gaps_s)
        self._arm()

    def _arm(self) -> None:
        whole_s, part_s = divmod(self._due_s, 1.0)
        spec = _TimerSpec(0, 0, int(whole_s), int(part_s * 1e9) + 1)
        if self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

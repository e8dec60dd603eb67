"""Calls at exact times, on Linux to within some tens of microseconds (timerfd).

uvloop's own timers have a resolution of milliseconds, so a fast proxy's requests would arrive in bursts.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator

_CLOCK_MONOTONIC, _ABSOLUTE = 1, 1


class Pacer:
    """Calls `arrive` with each of the times `due_s` (of `time.monotonic`, in order) when it has come.

    `over` is done when they have ended, and has the error that `arrive` or the times raised, if they did.
    """

    def __init__(self, arrive: Callable[[float], None], due_s: Iterator[float]) -> None:
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._arrive = arrive
        self._times_s = due_s
        self._next_s = next(due_s, None)
        self._fd: int | None = None
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._checked(self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
            self._loop.add_reader(self._fd, self._wake)
        self._arm()

    def stop(self) -> None:
        self._end()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _wake(self) -> None:
        if self._fd is not None:
            os.read(self._fd, 8)
        try:
            while self._next_s is not None and self._next_s <= time.monotonic():
                self._arrive(self._next_s)
                if self._next_s is not None:  # `arrive` may stop
                    self._next_s = next(self._times_s, None)
        except Exception as error:  # in a callback of the loop it would be logged, and the run would wait for ever
            self._next_s = None
            self.over.set_exception(error)
        self._arm()

    def _end(self) -> None:
        self._next_s = None
        if not self.over.done():
            self.over.set_result(None)

    def _arm(self) -> None:
        if self._next_s is None:
            self._end()
        elif self._fd is None:
            self._loop.call_later(max(0.0, self._next_s - time.monotonic()), self._wake)
        else:
            whole_s, part_s = divmod(self._next_s, 1.0)
            # timerfd_settime(2)'s `struct itimerspec`: the interval's seconds and nanoseconds, then the time's
            spec = (ctypes.c_long * 4)(0, 0, int(whole_s), int(part_s * 1e9) + 1)
            self._checked(self._libc.timerfd_settime(self._fd, _ABSOLUTE, spec, None))

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), "timerfd")
        return result

"""Read the sockets once more before a deadline is judged.

The event loop runs due timers before it reads sockets. If the process was stopped, or a turn took long, the bytes that
would have met a deadline lie in their sockets when its timer runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

_TURN_S: Final = 0.001
"""The shortest timer: one turn of the loop, in which all sockets are read, comes before it."""
_TURNS: Final = 2
"""The end of a dial needs a second turn to reach its request."""


class LastLook:
    """A call of `judge` after the sockets have been read."""

    __slots__ = ("_arguments", "_judge", "_left", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, judge: Callable[..., object], *arguments: Any) -> None:
        self._loop = loop
        self._judge = judge
        self._arguments = arguments
        self._left = _TURNS
        self._timer = loop.call_later(_TURN_S, self._turned)

    def cancel(self) -> None:
        self._timer.cancel()

    def _turned(self) -> None:
        self._left -= 1
        if self._left:
            self._timer = self._loop.call_later(_TURN_S, self._turned)
        else:
            self._judge(*self._arguments)

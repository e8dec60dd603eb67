"""The stand-in's clock: calls each stream once per interval."""

from __future__ import annotations

import asyncio
from typing import Protocol

PHASES = 20


class Stream(Protocol):
    """The ticker's callback."""

    def token(self) -> None:
        """Send the next frame."""

    def finish(self) -> None: ...


class Ticker:
    """Calls each stream once per interval, in one of `PHASES` groups. It does not run while there is no stream."""

    def __init__(self, interval_s: float) -> None:
        self._groups: list[dict[Stream, None]] = [{} for _ in range(PHASES)]
        self._place: dict[Stream, int] = {}
        self._turn = 0
        self._interval_s = interval_s
        self._step_s = interval_s / PHASES
        self._loop = asyncio.get_running_loop()
        self._due_s = 0.0
        self._ticking = False
        self._held = False
        self._ended_sent = 0

    @property
    def sent(self) -> int:
        """Number of tokens sent on streams that have ended."""
        return self._ended_sent

    def order(self, word: str) -> None:
        """Carry out ``hold``, ``go`` or ``finish``; any other word does nothing."""
        if word in ("hold", "go"):
            self._held = word == "hold"
            self._start()
        elif word == "finish":
            for stream in tuple(self._place):
                stream.finish()

    def add(self, stream: Stream) -> None:
        """Call `stream` from the next interval on."""
        self._place[stream] = place = len(self._place) % PHASES
        self._groups[place][stream] = None
        self._start()

    def remove(self, stream: Stream, sent: int) -> None:
        """Remove `stream`, which has written `sent` tokens."""
        place = self._place.pop(stream, None)
        if place is not None:
            del self._groups[place][stream]
            self._ended_sent += sent

    def _start(self) -> None:
        if not self._ticking and self._place and not self._held:
            self._ticking = True
            self._due_s = self._loop.time()
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        if self._held or not self._place:
            self._ticking = False
            return
        for stream in tuple(self._groups[self._turn]):
            stream.token()
        self._turn = (self._turn + 1) % PHASES
        # On a machine that is too slow, streams run slower. Without this limit, late frames would add up and then be
        # sent in a burst, which no worker does.
        self._due_s = max(self._due_s + self._step_s, self._loop.time() - self._interval_s)
        self._loop.call_at(self._due_s, self._tick)

"""Short writes wait until the loop is through with what it has read."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

log = logging.getLogger("warmroute.gateway")


class Writer(Protocol):
    """A connection with something to write."""

    def flush(self) -> None:
        """Write it now."""
        ...


class WriteCoalescer:
    """Connections to be flushed once the loop has handed out all reads of this turn.

    A write wakes whoever sleeps on the other side; on a busy gateway that is a good part of a short request's cost,
    and most of it is saved when the writes of a turn follow one another: the other side is still awake. An idle
    gateway has one read per turn, so nothing waits there. A token of an open stream is not worth a place in here.
    """

    __slots__ = ("_call_soon", "_writers")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._writers: list[Writer] = []

    def add(self, writer: Writer) -> None:
        """Flush `writer` at the end of this turn; once is enough."""
        if not self._writers:
            self._call_soon(self._flush)
        self._writers.append(writer)

    def _flush(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            try:
                writer.flush()
            except Exception:
                log.exception("write failed")

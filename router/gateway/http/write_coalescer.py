"""Groups short writes at the end of a loop iteration."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

log = logging.getLogger("warmroute.gateway")


class Writer(Protocol):
    """A connection with bytes to write."""

    def flush(self) -> None:
        """Write the bytes now."""
        ...


class WriteCoalescer:
    """Flushes connections once all reads of the current iteration are handled.

    A write wakes the process that sleeps on the other side, which is a good part of a short request's cost on a busy
    gateway. When the writes of an iteration follow each other, that process is still awake. An idle gateway has one
    read per iteration, so nothing waits. Tokens of open streams are written directly.
    """

    __slots__ = ("_call_soon", "_writers")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._writers: list[Writer] = []

    def add(self, writer: Writer) -> None:
        """Flush `writer` at the end of this iteration. It must not be added twice before that."""
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

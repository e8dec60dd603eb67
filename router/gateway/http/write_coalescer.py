"""Groups short writes at the end of a loop iteration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

log = logging.getLogger("warmroute.gateway")


class Writer(Protocol):
    def flush(self) -> None: ...


class WriteCoalescer:
    """Flushes connections once all reads of the current iteration are handled.

    A write wakes the process that sleeps on the other side, which is a good part of a short request's cost on a busy
    gateway. When the writes of an iteration follow each other, that process is still awake. A writer that is in haste
    need not wait while the gateway is `quiet`. Tokens of open streams are written directly.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._writers: list[Writer] = []
        self._notes: list[tuple[Callable[[Any], None], Any]] = []
        self.quiet = True
        """Whether the last iteration with writers or notes had one writer at most: there is nothing to group."""

    def add(self, writer: Writer) -> None:
        """Flush `writer` at the end of this iteration. Add it again only if it was flushed since."""
        if not self._writers and not self._notes:
            self._call_soon(self._flush)
        self._writers.append(writer)

    def note_after(self, note: Callable[[Any], None], about: Any) -> None:
        if not self._writers and not self._notes:
            self._call_soon(self._flush)
        self._notes.append((note, about))

    def _flush(self) -> None:
        writers, self._writers = self._writers, []
        notes, self._notes = self._notes, []
        self.quiet = len(writers) <= 1
        for writer in writers:
            try:
                writer.flush()
            except Exception:
                log.exception("write failed")
        for note, about in notes:
            try:
                note(about)
            except Exception:
                log.exception("note failed")

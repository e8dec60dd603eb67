"""A thread that writes log lines, so that a slow, stuck or broken sink never stops the event loop."""

from __future__ import annotations

import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

MOST_LINES = 20_000
"""Maximum lines that wait to be written. Further lines are dropped and counted."""
MOST_BYTES = 4_194_304
"""Maximum characters that wait to be written."""
GATHER_S = 0.02
"""Lines within this time are written together, because waking the thread for each line would cost more than the
write.
"""
STUCK_S = 1.0
"""An exit waits this long for a sink that accepts no bytes, and `EXIT_S` for a slow sink."""
EXIT_S = 5.0
_REPORT_EVERY_S = 10.0
_PIECE_BYTES = 65_536
"""Maximum size of one write."""
_PIPE_PIECE_BYTES = 4_096
"""Maximum size of one write to a pipe, which processes may share: longer writes may be split (PIPE_BUF)."""


class LogWriter:
    """Write to `sink`, through its file descriptor if it has one.

    `dropped_line` makes the line that reports how many were dropped, written once writing works again. One thread at a
    time may call `put`, which never blocks.
    """

    def __init__(self, sink: TextIO, dropped_line: Callable[[int], str]) -> None:
        self._sink = sink
        self._descriptor = _descriptor_of(sink)
        self._piece_bytes = _PIPE_PIECE_BYTES if _is_pipe(self._descriptor) else _PIECE_BYTES
        self._dropped_line = dropped_line
        self._lines: deque[str] = deque()
        self._put_bytes = 0
        self._done_bytes = 0
        self._refused = 0
        self._failed = 0
        self._reported = 0
        self._reported_s = 0.0
        self._sleeps = False
        self._closing = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    @property
    def lines_dropped(self) -> int:
        """Lines that were never written, because too many waited or the sink failed."""
        return self._refused + self._failed

    def put(self, line: str) -> None:
        """Queue `line`, or drop it if too many wait."""
        size_bytes = len(line) + 1
        if len(self._lines) >= MOST_LINES or self._put_bytes - self._done_bytes + size_bytes > MOST_BYTES:
            self._refused += 1
            return
        self._put_bytes += size_bytes
        self._lines.append(line)
        if self._sleeps:
            self._sleeps = False
            self._wake.set()

    def flush(self) -> None:
        """Wait until all lines are written, but only briefly if the sink accepts no bytes."""
        end_s = time.monotonic() + EXIT_S
        done_bytes, stuck_s = self._done_bytes, time.monotonic() + STUCK_S
        while self._done_bytes < self._put_bytes and self._thread.is_alive():
            now_s = time.monotonic()
            if self._done_bytes != done_bytes:
                done_bytes, stuck_s = self._done_bytes, now_s + STUCK_S
            if now_s >= end_s or now_s >= stuck_s:
                return
            self._wake.set()
            time.sleep(0.001)

    def close(self) -> None:
        self._closing = True
        self.flush()
        self._wake.set()

    def _run(self) -> None:
        while not (self._closing and not self._lines):
            self._sleeps = True
            if not self._lines:  # checked after `_sleeps` is set; `put` uses the opposite order
                self._wake.wait()
            self._sleeps = False
            self._wake.clear()
            if not self._closing:
                time.sleep(GATHER_S)
            self._write_all()

    def _write_all(self) -> None:
        while self._lines:
            piece = [self._lines.popleft()]
            size_bytes = len(piece[0]) + 1
            while self._lines and size_bytes + len(self._lines[0]) < self._piece_bytes:
                piece.append(self._lines.popleft())
                size_bytes += len(piece[-1]) + 1
            if not self._write(piece):
                self._failed += len(piece)
            self._done_bytes += size_bytes
            self._report_dropped()

    def _report_dropped(self) -> None:
        """Report the lines dropped since the last report."""
        dropped = self.lines_dropped
        now_s = time.monotonic()
        if dropped == self._reported or (self._lines and now_s - self._reported_s < _REPORT_EVERY_S):
            return
        self._reported_s = now_s
        if self._write([self._dropped_line(dropped - self._reported)]):
            self._reported = dropped

    def _write(self, lines: list[str]) -> bool:
        text = "\n".join(lines) + "\n"
        try:
            if self._descriptor is None:
                self._sink.write(text)
                self._sink.flush()
            else:
                _write_all(self._descriptor, text.encode("utf-8", "backslashreplace"))
        except (OSError, ValueError):  # no reader, a full disk, or a closed file
            return False
        return True


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # another process that shares the file made it non-blocking
            writable = select.poll()
            writable.register(descriptor, select.POLLOUT)
            writable.poll()


def _descriptor_of(sink: TextIO) -> int | None:
    try:
        sink.flush()
        return sink.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _is_pipe(descriptor: int | None) -> bool:
    return descriptor is not None and stat.S_ISFIFO(os.fstat(descriptor).st_mode)

"""The files of a decision log: compressed lines, rotated, written by a thread so that the disk never stops the loop."""

from __future__ import annotations

import contextlib
import gzip
import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from router.config.model import DecisionLogConfig

log = logging.getLogger("warmroute.decisions")

MOST_LINES = 8_192
"""Lines that may wait to be written. A further line is lost, and the recorder ends its window."""
_COMPRESSION = 3
"""A third of the CPU time of zlib's default, for files that are about a tenth larger."""
_FLUSH_S = 1.0
_ROTATE = b""


class DecisionLogFile:
    """Writes to ``path``, and moves a full file to ``path.1``, that one to ``path.2`` and so on.

    `most_bytes` is the size before compression after which the next snapshot begins a new file; `files` is the number
    of files kept. Satisfies `router.placement.decision_log.recorder.LineSink`.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, most_bytes: int, files: int) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._files = files
        self._size_bytes = 0
        self._lines: queue.Queue[bytes | None] = queue.Queue(MOST_LINES)
        self._failed = False
        self.lines_lost = 0
        self.bytes_written = 0
        self._shift()
        self._file = self._open()
        self._thread = threading.Thread(target=self._run, name="decision log", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether the next snapshot should begin a new file."""
        return self._size_bytes >= self._most_bytes

    def write(self, line: bytes) -> bool:
        """Queue a line; return False if it is lost, because the disk is too slow or has failed."""
        try:
            if self._failed:
                raise queue.Full
            self._lines.put_nowait(line)
        except queue.Full:
            self.lines_lost += 1
            return False
        self._size_bytes += len(line)
        return True

    def rotate(self) -> None:
        """Begin a new file with the next line."""
        if self.write(_ROTATE):
            self._size_bytes = 0

    def close(self) -> None:
        """Write what waits, and close the file."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=1.0)
        self._thread.join(timeout=5.0)

    def statistics(self) -> dict[str, int]:
        """Return bytes written before compression, and lines lost."""
        return {"bytes": self.bytes_written, "lines_lost": self.lines_lost}

    def _run(self) -> None:
        while True:
            try:
                line = self._lines.get(timeout=_FLUSH_S)
            except queue.Empty:
                self._guarded(self._file.flush)
                continue
            if line is None:
                self._guarded(self._file.close)
                return
            self._guarded(partial(self._put, line))

    def _guarded(self, step: Callable[[], object]) -> None:
        if self._failed:
            return
        try:
            step()
        except OSError as error:
            self._failed = True
            log.error("the decision log cannot be written and ends here", extra={"reason": str(error)})

    def _put(self, line: bytes) -> None:
        if line == _ROTATE:
            self._file.close()
            self._shift()
            self._file = self._open()
            return
        self._file.write(line)
        self.bytes_written += len(line)

    def _open(self) -> BinaryIO:
        return cast("BinaryIO", gzip.open(self._path, "wb", compresslevel=_COMPRESSION))

    def _shift(self) -> None:
        """Rename the files, so that ``path`` is free."""
        for number in range(self._files - 1, 0, -1):
            older = self._numbered(number)
            newer = self._path if number == 1 else self._numbered(number - 1)
            if newer.exists():
                newer.replace(older)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def open_decision_log(settings: DecisionLogConfig) -> DecisionLogFile | None:
    """Open the decision log; return None if there is none. A file that cannot be opened is only reported, because the
    gateway can serve without it.
    """
    if settings.path is None:
        return None
    try:
        return DecisionLogFile(Path(settings.path), settings.max_bytes, settings.files)
    except OSError as error:
        log.error("the decision log cannot be opened", extra={"path": settings.path, "reason": str(error)})
        return None

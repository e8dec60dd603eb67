"""The files of a decision log: rotated, and written by a thread so that the disk never stops the loop."""

from __future__ import annotations

import gzip
import logging
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from router.config.model import DecisionLogConfig

log = logging.getLogger("warmroute.decisions")

MOST_BYTES = 67_108_864
"""Bytes that may wait to be written. A further line is lost, and the recorder ends its window."""
GATHER_S = 0.5
"""Lines within this time are written together: waking the thread for each line would cost more than the write."""
_COMPRESSION = 1
"""The fastest of zlib's. Compression is most of what a compressed log costs."""
_ROTATE = b""
FILES = 5
"""Files kept of a decision log; each of `FILE_BYTES`."""
FILE_BYTES = 1 << 28
"""Size of one file before compression, about. The next decision begins a new file with a snapshot of every policy, also
within a window."""


class DecisionLogFile:
    """Writes to ``path``, and moves a full file to ``path.1``, that one to ``path.2`` and so on. A path that ends in
    ``.gz`` is compressed.

    `most_bytes` is the size before compression after which the next snapshot begins a new file; `files` is the number
    of files kept. Satisfies `router.placement.decision_log.recorder.LineSink`.

    Raises:
        OSError: the file cannot be opened, or the path is no regular file.
    """

    def __init__(self, path: Path, most_bytes: int, files: int) -> None:
        if path.exists() and not path.is_file():
            # A gateway that runs as root would rename a device such as /dev/null.
            raise OSError("not a regular file")
        self._path = path
        self._most_bytes = most_bytes
        self._files = files
        self._size_bytes = 0
        self._lines: deque[bytes] = deque()
        self._put_bytes = 0
        self._done_bytes = 0
        self._failed = False
        self._closing = threading.Event()
        self._shift()
        self._file = self._open()
        self._thread = threading.Thread(target=self._run, name="decision log", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        return self._size_bytes >= self._most_bytes

    def write(self, line: bytes) -> bool:
        """Queue a line; return False if it is lost, because the disk is too slow or has failed."""
        if self._failed or self._put_bytes - self._done_bytes + len(line) > MOST_BYTES:
            return False
        self._put_bytes += len(line)
        self._size_bytes += len(line)
        self._lines.append(line)
        return True

    def rotate(self) -> None:
        self._lines.append(_ROTATE)
        self._size_bytes = 0

    def close(self) -> None:
        self._closing.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._closing.wait(GATHER_S):
            self._guarded(self._write_waiting)
        self._guarded(self._write_waiting)
        self._guarded(self._file.close)

    def _guarded(self, step: Callable[[], object]) -> None:
        if self._failed:
            return
        try:
            step()
        except OSError as error:
            self._failed = True
            self._lines.clear()
            log.error("the decision log cannot be written and ends here", extra={"reason": str(error)})

    def _write_waiting(self) -> None:
        """Write the lines that wait now, and hand them to the operating system."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        while _ROTATE in lines:
            place = lines.index(_ROTATE)
            self._put(b"".join(lines[:place]))
            self._file.close()
            self._shift()
            self._file = self._open()
            del lines[: place + 1]
        self._put(b"".join(lines))

    def _put(self, text: bytes) -> None:
        if text:
            self._file.write(text)
            self._file.flush()
            self._done_bytes += len(text)

    def _open(self) -> BinaryIO:
        if self._path.suffix == ".gz":
            return cast("BinaryIO", gzip.open(self._path, "wb", compresslevel=_COMPRESSION))
        return self._path.open("wb")

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
        return DecisionLogFile(Path(settings.path), FILE_BYTES, FILES)
    except OSError as error:
        log.error("the decision log cannot be opened", extra={"path": settings.path, "reason": str(error)})
        return None

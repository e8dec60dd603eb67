"""Files in memory for the tables that one process writes and others read."""

from __future__ import annotations

import mmap
import os
import shutil
import stat
from pathlib import Path

MEMORY = Path("/dev/shm")
"""File system in memory. A container may limit it to 64 MB; then the tables are in `folder`."""


class TableFiles:
    """Make files in a folder of the same name in `MEMORY`, or in `folder` if that has no room."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folders = [MEMORY / folder.name, folder] if MEMORY.is_dir() else [folder]
        self._made = 0

    def make(self, size: int) -> tuple[str, memoryview]:
        """Return the path of a file of `size` zero bytes, and its memory.

        Raises:
            OSError: there is no room.
        """
        self._made += 1
        failure: OSError | None = None
        for folder in self._folders:
            path = folder / f"table-{os.getpid()}-{self._made}"
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
                _check(folder)
            except OSError as error:
                failure = error
                continue
            try:
                with path.open("xb+") as file:
                    _reserve(file.fileno(), size)
                    return str(path), memoryview(mmap.mmap(file.fileno(), size))
            except OSError as error:
                path.unlink(missing_ok=True)
                failure = error
        assert failure is not None
        raise failure

    def clear(self) -> None:
        """Remove every file, also those of a process that was killed. Who has mapped one keeps it."""
        for path in self._folder.glob("table-*"):
            path.unlink(missing_ok=True)
        remove_memory(self._folder)


def _check(folder: Path) -> None:
    """Raise PermissionError if another user may change what is in the folder."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is open to other users")


def _reserve(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)  # fails where there is no room; without it the first write would be fatal
    else:
        os.ftruncate(file, size)


def mapped(path: str) -> memoryview:
    """Return the memory of a table's file, to read.

    Raises:
        OSError: there is no such file any more.
    """
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def remove_memory(folder: Path) -> None:
    """Remove the folder in `MEMORY` that belongs to `folder`."""
    shutil.rmtree(MEMORY / folder.name, ignore_errors=True)

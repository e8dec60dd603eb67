"""Text of a file that may be compressed, read on demand: plain, ``.gz`` by Python, ``.zst`` by the zstd command."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO, cast

from loadtest.workload.errors import TraceError


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Open `path` as text, unpacked by its suffix. A byte order mark is skipped; line ends are kept.

    Raises:
        TraceError: the file is missing, unreadable or broken, or there is no command to unpack it with.
    """
    try:
        with path.open("rb") as packed, _unpacked(path, packed) as raw:
            yield io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
    except (EOFError, UnicodeDecodeError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path} cannot be read as {_kind(path)}: {error}") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from None


def _kind(path: Path) -> str:
    packed = {".gz": "gzip", ".zst": "Zstandard"}.get(path.suffix)
    return f"{packed}, as its name says" if packed else "text in UTF-8 (packed files are named .gz or .zst)"


@contextmanager
def _unpacked(path: Path, packed: IO[bytes]) -> Iterator[IO[bytes]]:
    if path.suffix == ".zst":
        with _zstd(path, packed) as raw:
            yield raw
    elif path.suffix == ".gz":
        with gzip.open(packed) as zipped:
            yield cast(IO[bytes], zipped)
    else:
        yield packed


@contextmanager
def _zstd(path: Path, packed: IO[bytes]) -> Iterator[IO[bytes]]:
    command = shutil.which("zstd")
    if command is None:
        raise TraceError(f"{path}: a .zst file needs the zstd command (Debian: apt-get install zstd), or unpack it")
    with subprocess.Popen([command, "-dc"], stdin=packed, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        raw = io.BufferedReader(io.FileIO(process.stdout.fileno(), closefd=False))
        try:
            yield raw
        finally:
            # A reader that has read enough stops the command. If the command ended by itself, its exit code is the
            # error to report, before any complaint about the row that its failure cut off.
            if process.stdout.read(1):
                process.kill()
            elif process.wait():
                said = process.stderr.read().decode(errors="replace").strip()
                raise TraceError(f"{path} cannot be read as {_kind(path)}: {said}")

"""Rows of a trace as records: a JSON object per line, or CSV with a header; the first character decides which.

Compressed files are read on demand, ``.gz`` by Python, ``.zst`` by the zstd command.
"""

from __future__ import annotations

import csv
import gzip
import io
import shutil
import subprocess
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any, TextIO, cast

import msgspec

from loadtest.workload.errors import TraceError

Record = dict[str, Any]
"""Fields by name. Values from a CSV file are strings."""

Numbered = tuple[int, Record]
"""A row's number, from 1, and the row."""


def records(path: Path) -> Generator[Numbered, None, None]:
    """Yield every row of the file except blank lines, read on demand. Close the generator if you do not exhaust it.

    Raises:
        TraceError: the file cannot be read, or a row is neither a JSON object nor a CSV line.
    """
    with opened(path) as text:
        lines = _filled(text)
        first = next(lines, None)
        if first is None:
            raise TraceError(f"{path} has no rows")
        every = chain([first], lines)
        yield from _objects(path, every) if first.lstrip()[0] in "{[" else _table(path, every)


def _filled(text: TextIO) -> Iterator[str]:
    return (line for line in text if not line.isspace())


def _objects(path: Path, lines: Iterable[str]) -> Iterator[Numbered]:
    decoder = msgspec.json.Decoder(Record)
    for number, line in enumerate(lines, 1):
        try:
            yield number, decoder.decode(line)
        except msgspec.DecodeError as error:
            raise TraceError.at_row(path, number, f"it is no JSON object: {error}") from None


def _table(path: Path, lines: Iterable[str]) -> Iterator[Numbered]:
    rows = csv.reader(lines)
    try:
        header = [name.strip() for name in next(rows)]
        for number, row in enumerate(rows, 1):
            if len(row) != len(header):
                raise TraceError.at_row(path, number, f"{len(row)} fields under a header of {len(header)}")
            yield number, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise TraceError(f"{path}, line {rows.line_num}: {error}") from None


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

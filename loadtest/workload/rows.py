"""Rows of a trace as records: a JSON object per line, or CSV with a header; the first character decides which."""

from __future__ import annotations

import csv
from collections.abc import Generator, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import msgspec

from loadtest.workload.errors import TraceError
from loadtest.workload.unpack import opened

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

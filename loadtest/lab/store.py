"""Finished cells on disk: one line of JSON each, appended when the cell ends, found by digest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadtest.lab.cell import Cell, as_json, code_version, digest
from loadtest.lab.measures import Measures

FILE = "cells.jsonl"


class StoreError(Exception):
    """The folder cannot be written, or holds something else; the message says what to do."""


class Result(msgspec.Struct, frozen=True):
    """A finished cell."""

    digest: str
    code: str
    cell: dict[str, Any]
    measures: Measures


@dataclass(frozen=True, slots=True)
class Kept:
    """The results of a folder. `foreign` counts results of other code, which are not used."""

    results: dict[str, Result]
    foreign: int


class Store:
    """The results in one folder.

    Raises:
        StoreError: the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            kept = _read(self.path)
        except OSError as error:
            raise StoreError(f"--out {folder} cannot be used: {error.strerror}; name a folder to write to") from None
        self._results = kept.results
        self.foreign = kept.foreign

    def get(self, cell: Cell) -> Result | None:
        """Return the cell's result if it ran with these settings and this code, under any load."""
        kept = self._results.get(digest(cell))
        return None if kept is None else msgspec.structs.replace(kept, cell=as_json(cell))

    def add(self, cell: Cell, measures: Measures) -> Result:
        result = Result(digest(cell), code_version(), as_json(cell), measures)
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")
        self._results[result.digest] = result
        return result


def _read(path: Path) -> Kept:
    """Read all results of today's code. Remove an incomplete last line from the file."""
    if not path.exists():
        return Kept({}, 0)
    packed = path.read_bytes()
    whole = packed[: packed.rfind(b"\n") + 1]
    if len(whole) < len(packed):
        path.write_bytes(whole)
    read = list(_results(path, whole))
    ours = {result.digest: result for result in read if result is not None and result.code == code_version()}
    return Kept(ours, sum(result is None or result.code != code_version() for result in read))


def _results(path: Path, whole: bytes) -> Iterator[Result | None]:
    """Yield each line's result; None for a result of other code, which may have another format."""
    code = msgspec.json.Decoder(_Code)
    decoder = msgspec.json.Decoder(Result)
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            yield decoder.decode(line) if code.decode(line).code == code_version() else None
        except msgspec.DecodeError as error:
            raise StoreError(
                f"{path}, line {number}, is no finished cell ({error}); delete the line, or name another --out"
            ) from None


class _Code(msgspec.Struct, frozen=True):
    code: str

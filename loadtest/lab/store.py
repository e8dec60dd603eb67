"""Finished cells on disk: one line of JSON each, appended when the cell ends, found by digest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from loadtest.lab.cell import Cell, code_version, digest
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


class Store:
    """The results in one folder. `foreign` counts results of other code, which are not used.

    Raises:
        StoreError: the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.foreign = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._results = {result.digest: result for result in self._read()}
        except OSError as error:
            raise StoreError(f"--out {folder} cannot be used: {error.strerror}; name a folder to write to") from None

    def get(self, cell: Cell) -> Result | None:
        """Return the cell's result if it ran with these settings and this code, under any load."""
        kept = self._results.get(digest(cell))
        return None if kept is None else msgspec.structs.replace(kept, cell=asdict(cell))

    def add(self, cell: Cell, measures: Measures) -> Result:
        result = Result(digest(cell), code_version(), asdict(cell), measures)
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")
        self._results[result.digest] = result
        return result

    def _read(self) -> Iterator[Result]:
        """Yield all results of today's code. Remove an incomplete last line from the file."""
        packed = self.path.read_bytes() if self.path.exists() else b""
        whole = packed[: packed.rfind(b"\n") + 1]
        if len(whole) < len(packed):
            self.path.write_bytes(whole)
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                if msgspec.json.decode(line, type=_Code).code == code_version():
                    yield msgspec.json.decode(line, type=Result)
                else:  # which may have another format
                    self.foreign += 1
            except msgspec.DecodeError as error:
                raise StoreError(
                    f"{self.path}, line {number}, is no finished cell ({error}); delete the line, or name another --out"
                ) from None


class _Code(msgspec.Struct, frozen=True):
    code: str

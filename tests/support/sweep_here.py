"""A sweep in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadtest.lab.cell import Cell
from loadtest.lab.run_cell import run_cell
from loadtest.lab.store import Result, Store


class SweepHere:
    """Takes the place of `loadtest.lab.sweep.Sweep`, counts what it runs, and may be stopped after some cells."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after, self.ran = stop_after, 0

    def __call__(self, store: Store, jobs: int) -> SweepHere:
        self.store = store
        return self

    def __enter__(self) -> SweepHere:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def results(self, cells: Sequence[Cell], on_done: Callable[[Result], None] = lambda result: None) -> list[Result]:
        return [self._result(cell, on_done) for cell in cells]

    def _result(self, cell: Cell, on_done: Callable[[Result], None]) -> Result:
        kept = self.store.get(cell)
        if kept is None:
            if self.ran == self.stop_after:
                raise KeyboardInterrupt
            self.ran += 1
            kept = self.store.add(cell, run_cell(cell))
        on_done(kept)
        return kept

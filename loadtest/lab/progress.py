"""Cells under a progress bar; without a terminal, a line at each tenth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from loadtest.lab.cell import Cell
from loadtest.lab.store import Result, Store
from loadtest.lab.sweep import Sweep


class Watched:
    """A sweep whose progress is shown."""

    def __init__(self, bar: Progress, sweep: Sweep) -> None:
        self._bar = bar
        self._sweep = sweep

    def tried(self, title: str, cells: list[Cell]) -> list[Result]:
        """Return the results of one try of a search for saturation."""
        return self.results(f"{title}load 1.0 by {cells[0].policy}: {cells[0].rate:.2f} x the trace's rate", cells)

    def results(self, name: str, cells: Sequence[Cell]) -> list[Result]:
        task, done = self._bar.add_task(name, total=len(cells)), 0

        def heard(result: Result) -> None:
            nonlocal done
            done += 1
            self._bar.advance(task)
            if done * 10 // len(cells) > (done - 1) * 10 // len(cells):
                self._print(f"{name}: {done} of {len(cells)}")

        results = self._sweep.results(cells, heard)
        self._bar.remove_task(task)
        return results

    def _print(self, line: str) -> None:
        if not self._bar.console.is_terminal:
            self._bar.console.print(line, highlight=False)


@contextmanager
def watched(console: Console, store: Store, jobs: int) -> Iterator[Watched]:
    if store.foreign:
        console.print(f"{store.path}: {store.foreign} cells of other code are left out", style="yellow")
    with progress_bar(console) as bar, Sweep(store, jobs) as sweep:
        yield Watched(bar, sweep)


def progress_bar(console: Console) -> Progress:
    """Return a progress bar for 80 columns: a longer name would cut off the time left."""
    name = TextColumn("{task.description}", table_column=Column(max_width=28, no_wrap=True, overflow="ellipsis"))
    columns = name, BarColumn(16), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("left")
    return Progress(*columns, console=console, transient=True)

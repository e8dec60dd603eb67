"""Cells under a progress bar; without a terminal, a line at each tenth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from loadtest.lab.cell import Cell
from loadtest.lab.saturation import USUAL_TRIES, Saturation
from loadtest.lab.store import Result, Store
from loadtest.lab.study import Study
from loadtest.lab.sweep import Sweep


class Watched:
    """A sweep whose progress is shown."""

    def __init__(self, bar: Progress, sweep: Sweep) -> None:
        self._bar = bar
        self._sweep = sweep

    def saturations(self, study: Study, title: str = "") -> tuple[Saturation, Saturation | None]:
        """Return load 1.0, and round robin's if the study wants it.

        Raises:
            SaturationError: there is no load 1.0.
        """
        bar = self._bar
        tasks: dict[str, TaskID] = {}

        def tried(cells: list[Cell]) -> list[Result]:
            rule, rate = cells[0].policy, cells[0].rate
            name = f"{title}load 1.0 by {rule}"
            if rule not in tasks:
                tasks[rule] = bar.add_task(name, total=USUAL_TRIES * len(cells))
            if not bar.console.is_terminal:
                bar.console.print(f"{name}: {rate:.2f} x the trace's rate", highlight=False)
            task = bar.tasks[bar.task_ids.index(tasks[rule])]
            bar.update(task.id, total=max(task.total or 0.0, task.completed + len(cells)))
            return self._sweep.results(cells, lambda result: bar.advance(task.id))

        found = study.saturations(tried)
        for task in tasks.values():
            bar.remove_task(task)
        return found

    def results(self, name: str, cells: Sequence[Cell]) -> list[Result]:
        bar = self._bar
        task: TaskID = bar.add_task(name, total=len(cells))
        done = 0

        def heard(result: Result) -> None:
            nonlocal done
            bar.advance(task)
            done += 1
            if not bar.console.is_terminal and done * 10 // len(cells) > (done - 1) * 10 // len(cells):
                bar.console.print(f"{name}: {done} of {len(cells)}", highlight=False)

        results = self._sweep.results(cells, heard)
        bar.remove_task(task)
        return results


@contextmanager
def watched(console: Console, store: Store, jobs: int) -> Iterator[Watched]:
    if store.foreign:
        console.print(f"{store.path}: {store.foreign} cells of other code are left out", style="yellow")
    with progress_bar(console) as bar, Sweep(store, jobs) as sweep:
        yield Watched(bar, sweep)


def progress_bar(console: Console) -> Progress:
    """Return a progress bar for 80 columns: a narrower terminal would cut off the time left."""
    name = Column(max_width=28, no_wrap=True, overflow="ellipsis")
    return Progress(
        TextColumn("{task.description}", table_column=name),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        transient=True,
    )

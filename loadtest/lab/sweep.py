"""Many cells in parallel processes; each result is stored as soon as its cell ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from types import TracebackType

from loadtest.lab.cell import Cell
from loadtest.lab.measures import Measures
from loadtest.lab.run_cell import run_cell
from loadtest.lab.store import Result, Store

Done = Callable[[Result], None]


class SweepError(Exception):
    """A process died while it ran a cell."""


class Sweep:
    """Runs the cells that the store lacks.

    If an error or Ctrl-C ends its block early, waiting cells are dropped and running ones are terminated.
    """

    def __init__(self, store: Store, jobs: int) -> None:
        self._store = store
        # Spawned, because a fork of a process with threads (such as the progress bar's) may hang.
        self._pool = ProcessPoolExecutor(jobs, get_context("spawn"), _follow_the_parent)

    def __enter__(self) -> Sweep:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for process in list(self._pool._processes.values()):
                process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def results(self, cells: Sequence[Cell], on_done: Done = lambda result: None) -> list[Result]:
        """Return every cell's result, in the order of `cells`; `on_done` receives each as it is found or finished.

        Raises:
            SweepError: a process was killed.
        """
        found = {cell: self._store.get(cell) for cell in dict.fromkeys(cells)}
        for kept in found.values():
            if kept is not None:
                on_done(kept)
        for cell, fresh in self._run([cell for cell, kept in found.items() if kept is None]):
            found[cell] = fresh
            on_done(fresh)
        return [result for cell in cells if (result := found[cell]) is not None]

    def _run(self, cells: Iterable[Cell]) -> Iterator[tuple[Cell, Result]]:
        futures: dict[Future[Measures], Cell] = {self._pool.submit(run_cell, cell): cell for cell in cells}
        for future in as_completed(futures):
            cell = futures[future]
            try:
                measures = future.result()
            except BrokenProcessPool:
                raise SweepError(
                    "a process was killed while it ran a cell, perhaps for want of memory; what had finished is kept: "
                    "the same command goes on from there, and with a smaller --jobs needs less memory"
                ) from None
            yield cell, self._store.add(cell, measures)


def _follow_the_parent() -> None:
    """Leave Ctrl-C to the parent, and end if the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

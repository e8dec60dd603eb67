"""The whole command: virtual time first, then every rule on the fleet, seed by seed."""

from __future__ import annotations

import argparse
import signal
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.fleet.process import StartError
from loadtest.fleet.vllm import find_vllm
from loadtest.lab.cell import Cell
from loadtest.lab.measures import Measures
from loadtest.lab.run import INTERRUPTED
from loadtest.lab.run_cell import RuleFailed
from loadtest.lab.saturation import Saturation, SaturationError
from loadtest.live import report
from loadtest.live.findings import Findings, Seed
from loadtest.live.modelled import asked, play, saturates
from loadtest.live.settings import Unplayable, cells, first_cell, fleet_shape, settled
from loadtest.live.trial import Stage, Trial, run_trial
from loadtest.live.wording import NoWords, Wording
from loadtest.peers.workers import running_workers, served_model
from loadtest.workload.errors import WorkloadError

WIDTH = 200
"""Width of a table on a narrower console. A file or a pipe has no width of its own."""

_CORRECTABLE = (StartError, WorkloadError, SaturationError, RuleFailed, NoWords, Unplayable, OSError)


def run(args: argparse.Namespace) -> int:
    """Run the command and return the exit code: 2 if the user has to correct something first."""
    console = Console()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        with ExitStack() as stack:
            return _Live(settled(args), console, _log_folder(args.out, stack)).run()
    except _CORRECTABLE as error:
        console.print(str(error), style="red", highlight=False, markup=False)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def _log_folder(out: Path | None, stack: ExitStack) -> Path:
    """Return a folder for the logs: a temporary one if the command writes no results."""
    if out is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warmroute-live-")))
    (out / "logs").mkdir(parents=True, exist_ok=True)
    return out / "logs"


class _Live:
    """The work of one command. `_seeds` are the seeds that every rule has finished."""

    def __init__(self, args: argparse.Namespace, console: Console, logs: Path) -> None:
        self._args = args
        self._console = console
        self._seeds: list[Seed] = []
        self._logs = logs

    def run(self) -> int:
        """Play every seed, then write the tables. After Ctrl-C the tables have the complete seeds only."""
        first = first_cell(self._args)
        if self._args.backend == "vllm":
            find_vllm(self._args.vllm_env)
        one = self._saturation(first) if self._args.rate is None else None
        seeds = cells(self._args, one)
        modelled = self._modelled(seeds)
        stopped = False
        try:
            self._play(seeds, modelled)
        except KeyboardInterrupt:
            stopped = True
        if not self._seeds:
            return INTERRUPTED
        code = self._tell(seeds[0][0], one)
        return INTERRUPTED if stopped else code

    def _saturation(self, first: Cell) -> Saturation:
        with self._console.status("finding load 1.0 in virtual time"):
            return saturates(first, self._args.time_scale)

    def _modelled(self, seeds: Sequence[Sequence[Cell]]) -> list[dict[str, Measures]]:
        with self._bar() as bar:
            task = bar.add_task("in virtual time", total=len(seeds) * len(seeds[0]))
            found: list[dict[str, Measures]] = []
            for same in seeds:
                found.append({})
                for cell in same:
                    found[-1][cell.policy] = play(cell, self._args.time_scale)
                    bar.advance(task)
        return found

    def _play(self, seeds: Sequence[Sequence[Cell]], modelled: Sequence[dict[str, Measures]]) -> None:
        """Play the rules on each seed in random order, so that other work on the machine affects all alike."""
        with ExitStack() as stack:
            stage = self._stage(stack)
            for same, theirs in zip(seeds, modelled, strict=True):
                order = Random(same[0].seed).sample(same, len(same))
                live = {
                    cell.policy: self._trial(stage, cell, f"{place}/{len(order)}")
                    for place, cell in enumerate(order, 1)
                }
                self._seeds.append(Seed(same[0].seed, live, theirs))

    def _stage(self, stack: ExitStack) -> Stage:
        shape = fleet_shape(self._args)
        with self._bar() as bar:
            task = bar.add_task(f"starting {self._args.backend} workers", total=shape.workers)
            workers = stack.enter_context(running_workers(shape, self._logs, lambda number: bar.advance(task)))
        model, model_dir = served_model(workers[0])
        return Stage(workers, model, Wording(model_dir), self._logs)

    def _trial(self, stage: Stage, cell: Cell, place: str) -> Trial:
        with self._bar() as bar:
            title = f"seed {cell.seed}, {len(self._seeds) + 1} of {self._args.seeds}, {place}: {cell.policy}"
            task = bar.add_task(title, total=asked(cell).plan.calls)
            trial = run_trial(stage, cell, lambda: bar.advance(task))
        for error in trial.errors[:3]:
            self._console.print(f"failed: {error}", style="red", highlight=False, markup=False)
        return trial

    def _tell(self, first: Cell, one: Saturation | None) -> int:
        """Print and write the results; return 1 if the sides contradict each other, or if a call failed."""
        args = self._args
        findings = Findings(first, args.backend, args.time_scale, args.policy, one, self._seeds, args.case)
        report.show(Console(width=max(self._console.width, WIDTH)), findings)
        if args.out is not None:
            report.write(args.out, findings)
            self._console.print(f"{report.PAGE} and {report.RESULTS} are in {args.out}", highlight=False, markup=False)
        contradicted = any(found.inverted for found in findings.orderings())
        return 1 if contradicted or findings.errors() else 0

    def _bar(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        return Progress(*columns, console=self._console)

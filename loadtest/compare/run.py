"""The whole command: virtual time first, then every contender on the fleet, seed by seed."""

from __future__ import annotations

import argparse
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.compare import report
from loadtest.compare.contenders import Contender, gateway_of
from loadtest.compare.findings import Findings, Seed
from loadtest.compare.modelled import asked, play, saturates
from loadtest.compare.settings import Unplayable, cells, first_cell, settled
from loadtest.compare.trial import Stage, Trial, run_trial
from loadtest.compare.workers import served_model, start_fleet
from loadtest.fleet.process import INTERRUPTED, StartError, exit_code
from loadtest.fleet.vllm import find_vllm
from loadtest.lab.cell import Cell
from loadtest.lab.measures import Measures
from loadtest.lab.run_cell import RuleFailed
from loadtest.lab.saturation import SaturationError
from loadtest.workload.errors import WorkloadError
from loadtest.workload.wording import NoWords, Wording

WIDTH = 200
"""Width of a table on a narrower console. A file or a pipe has no width of its own."""

_CORRECTABLE = (WorkloadError, SaturationError, RuleFailed, NoWords, Unplayable)


def run(args: argparse.Namespace) -> int:
    """Run the command and return the exit code: 2 if the user has to correct something first."""

    def work() -> int:
        with tempfile.TemporaryDirectory(prefix="warmroute-compare-") as folder:
            logs = Path(folder) if args.out is None else args.out / "logs"
            logs.mkdir(parents=True, exist_ok=True)
            return _Compare(settled(args), Console(), logs).run()

    return exit_code("loadtest compare", work, *_CORRECTABLE, failed=2)


class _Compare:
    """The work of one command. `_seeds` are the seeds that every contender has finished."""

    def __init__(self, args: argparse.Namespace, console: Console, logs: Path) -> None:
        self._args = args
        self._console = console
        self._seeds: list[Seed] = []
        self._failed: set[str] = set()
        self._logs = logs
        self._environment = args.peers_env.absolute()
        peers = [peer for peer in args.peer if self._installed(peer)]
        self._contenders = [*map(gateway_of, args.policy), *peers]
        self._commands: dict[str, str] = {}

    def _installed(self, contender: Contender) -> bool:
        version = contender.version(self._environment)
        found = f"{contender.router} is not installed in {self._environment}" if version is None else version
        self._console.print(f"{contender.name}: {found}", highlight=False, markup=False)
        return version is not None

    def run(self) -> int:
        """Play every seed, then write the tables. After Ctrl-C the tables have the complete seeds only."""
        first, args = first_cell(self._args), self._args
        if args.backend == "vllm":
            find_vllm(args.vllm_env)
        one = None
        if args.rate is None:
            with self._console.status("finding load 1.0 in virtual time"):
                one = saturates(first, args.time_scale)
        seeds = cells(args, one)
        modelled = self._modelled(seeds)
        stopped = False
        try:
            self._play(seeds, modelled)
        except KeyboardInterrupt:
            stopped = True
        names = [each.name for each in self._contenders if each.name not in self._failed]
        if not self._seeds or not names:
            return INTERRUPTED if stopped else 1
        rules = [rule for rule in args.policy if rule in names]
        backend, scale = args.backend, args.time_scale
        code = self._report(Findings(seeds[0][0], backend, scale, names, rules, one, self._seeds, args.case))
        return INTERRUPTED if stopped else code

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
        """Play the contenders on each seed in random order, so that other work on the machine affects all alike."""
        with ExitStack() as stack:
            stage = self._stage(stack)
            self._commands = {one.name: shlex.join(one.command(stage.site())) for one in self._contenders}
            for (cell, *_), theirs in zip(seeds, modelled, strict=True):
                order = Random(cell.seed).sample(self._contenders, len(self._contenders))
                live: dict[str, Trial] = {}
                for place, contender in enumerate(order, 1):
                    if contender.name not in self._failed:
                        self._trial(stage, contender, cell, f"{place}/{len(order)}", live)
                self._seeds.append(Seed(cell.seed, live, theirs))

    def _stage(self, stack: ExitStack) -> Stage:
        with self._bar() as bar:
            task = bar.add_task(f"starting {self._args.backend} workers", total=self._args.workers)
            workers = start_fleet(stack, self._args, self._logs, lambda number: bar.advance(task))
        model, model_dir = served_model(workers[0])
        return Stage(workers, model, Wording(model_dir), self._environment, self._logs)

    def _trial(self, stage: Stage, contender: Contender, cell: Cell, place: str, live: dict[str, Trial]) -> None:
        with self._bar() as bar:
            title = f"seed {cell.seed}, {len(self._seeds) + 1} of {self._args.seeds}, {place}: {contender.name}"
            task = bar.add_task(title, total=asked(cell).plan.calls)
            try:
                live[contender.name] = run_trial(stage, contender, cell, lambda: bar.advance(task))
            except StartError as error:
                # The failure of one contender must not lose the runs of the others, which take minutes.
                self._failed.add(contender.name)
                self._console.print(f"failed: {error}", style="red", highlight=False, markup=False)
                return
        for said in live[contender.name].errors[:3]:
            self._console.print(f"failed: {said}", style="red", highlight=False, markup=False)

    def _report(self, findings: Findings) -> int:
        """Print and write the results; return 1 if something failed."""
        out: Path | None = self._args.out
        report.show(Console(width=max(self._console.width, WIDTH)), findings)
        if out is not None:
            report.write(out, findings, self._commands)
            self._console.print(f"{report.PAGE} and {report.RESULTS} are in {out}", highlight=False, markup=False)
        return 1 if findings.errors() or self._failed else 0

    def _bar(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        return Progress(*columns, console=self._console)

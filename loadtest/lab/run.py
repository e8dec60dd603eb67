"""The command: saturation, the cells, the sensitivity run, and the files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

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

from backends.engine.profile import load_profile
from loadtest.lab import flags, output, tables
from loadtest.lab.cell import Cell, Setting
from loadtest.lab.findings import Doubt, Findings
from loadtest.lab.run_cell import RuleFailed
from loadtest.lab.saturation import USUAL_TRIES, Saturation, SaturationError
from loadtest.lab.sources import drawn
from loadtest.lab.store import Result, Store, StoreError
from loadtest.lab.study import Study
from loadtest.lab.sweep import Sweep, SweepError
from loadtest.workload.errors import WorkloadError

INTERRUPTED = 130
"""The exit code that shells give a command that Ctrl-C has ended."""


def run(args: argparse.Namespace) -> int:
    """Run the command and return the exit code: 2 if a flag is wrong, 130 after Ctrl-C."""
    console = Console()
    wide = Console(width=max(console.width, tables.WIDTH))
    try:
        wrong = flags.problem(args) or _unreadable(args)
        if wrong is not None:
            return _refuse(console, wrong)
        findings = _Lab(args, console, Store(args.out)).find()
    except (StoreError, SaturationError, RuleFailed, SweepError, WorkloadError) as error:
        return _refuse(console, str(error))
    except KeyboardInterrupt:
        console.print(f"\nstopped; what had finished is kept in {args.out}: the same command goes on from there")
        return INTERRUPTED
    output.write(args.out, findings)
    tables.print_findings(wide, findings)
    wide.print(f"results.json, cells.csv, plots and report.html are in {args.out}", highlight=False, markup=False)
    return 0


def _refuse(console: Console, problem: str) -> int:
    console.print(problem, style="red", highlight=False, markup=False)
    return 2


def _unreadable(args: argparse.Namespace) -> str | None:
    try:
        found = drawn(args.trace, args.first_seed, args.window_s, 1.0, args.block_tokens)
    except WorkloadError as error:
        return f"--trace: {error}"
    if not found.plan.sessions:
        return f"--trace {args.trace} has no session in the window of seed {args.first_seed}; make --window-s longer"
    return _no_room(args, found.plan.block_tokens)


def _no_room(args: argparse.Namespace, trace_block_tokens: int) -> str | None:
    """Return an error if the cache has no space for two blocks. vLLM never uses one, so a cache needs at least two."""
    kv_tokens = args.kv_tokens or load_profile(args.profile).kv_tokens
    block_tokens = args.block_tokens or trace_block_tokens
    least = kv_tokens // 2 if args.sensitivity else kv_tokens
    if least >= 2 * block_tokens:
        return None
    halved = ", halved by --sensitivity," if args.sensitivity else ""
    return (
        f"a KV cache of {kv_tokens} tokens{halved} has no room for two blocks of {block_tokens}; take more --kv-tokens"
        " or smaller --block-tokens"
    )


class _Lab:
    """The work of one command."""

    def __init__(self, args: argparse.Namespace, console: Console, store: Store) -> None:
        self._args = args
        self._console = console
        self._store = store
        asked = (args.trace, args.policy, args.load, args.seeds, flags.setting(args), args.first_seed)
        self._study = Study(*asked, not args.no_round_robin)
        if store.foreign:
            console.print(f"{store.path}: {store.foreign} cells of other code are left out", style="yellow")

    def find(self) -> Findings:
        with _bar(self._console) as bar, Sweep(self._store, self._args.jobs) as sweep:
            ours, theirs = self._saturations(bar, sweep)
            results = _watched(bar, sweep, "cells", self._study.cells(ours))
            doubts = [self._doubt(bar, sweep, ours, *variant) for variant in self._variants()]
        return self._study.findings(ours, theirs, results, doubts)

    def _saturations(self, bar: Progress, sweep: Sweep) -> tuple[Saturation, Saturation | None]:
        tasks: dict[str, TaskID] = {}

        def tried(cells: list[Cell]) -> list[Result]:
            rule, rate = cells[0].policy, cells[0].rate
            if rule not in tasks:
                tasks[rule] = bar.add_task(f"load 1.0 by {rule}", total=USUAL_TRIES * len(cells))
            if not self._console.is_terminal:
                self._console.print(f"load 1.0 by {rule}: {rate:.2f} x the trace's rate", highlight=False)
            task = bar.tasks[bar.task_ids.index(tasks[rule])]
            bar.update(task.id, total=max(task.total or 0.0, task.completed + len(cells)))
            return sweep.results(cells, lambda result: bar.advance(task.id))

        found = self._study.saturations(tried)
        for task in tasks.values():
            bar.remove_task(task)
        return found

    def _variants(self) -> list[tuple[str, Setting]]:
        if not self._args.sensitivity:
            return []
        profile = load_profile(self._args.profile)
        sizes = {
            "chunk_tokens": profile.max_num_batched_tokens,
            "max_num_seqs": profile.max_num_seqs,
            "kv_tokens": profile.kv_tokens,
        }
        variants = self._study.setting.models.variants(sizes)
        return [
            (name, replace(self._study.setting, models=models))
            for name, models in variants
            if models.warm_up_s < self._args.window_s
        ]

    def _doubt(self, bar: Progress, sweep: Sweep, one: Saturation, name: str, setting: Setting) -> Doubt:
        """Run the same cells, at the same rates, with one parameter changed."""
        return Doubt(name, tuple(_watched(bar, sweep, name, self._study.cells(one, setting))))


def _bar(console: Console) -> Progress:
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


def _watched(bar: Progress, sweep: Sweep, name: str, cells: Sequence[Cell]) -> list[Result]:
    """Run cells under the bar. Without a terminal for the bar, print a line at each tenth."""
    task: TaskID = bar.add_task(name, total=len(cells))
    done = 0

    def heard(result: Result) -> None:
        nonlocal done
        bar.advance(task)
        done += 1
        if not bar.console.is_terminal and done * 10 // len(cells) > (done - 1) * 10 // len(cells):
            bar.console.print(f"{name}: {done} of {len(cells)}", highlight=False)

    results = sweep.results(cells, heard)
    bar.remove_task(task)
    return results

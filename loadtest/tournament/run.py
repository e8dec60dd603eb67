"""The command: select contests, play, write."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from loadtest.lab.cell import code_version
from loadtest.lab.findings import Findings
from loadtest.lab.progress import watched
from loadtest.lab.report import plots
from loadtest.lab.run import Refused, guarded
from loadtest.lab.saturation import RULE, Saturation
from loadtest.lab.store import Store
from loadtest.tournament import page, scores, update
from loadtest.tournament.contests import CONTESTS, FULL, QUICK, WARM_UP_SHARE, Contest, Extent
from loadtest.tournament.ranking import losses, overall
from loadtest.workload.source import parse_source
from policies.registry import BUILT_IN


def run(args: argparse.Namespace) -> int:
    console = Console()
    return guarded(console, args.out, lambda: _run(args, console))


def _run(args: argparse.Namespace, console: Console) -> None:
    """Play the tournament, or the rules of a finished one again."""
    if args.update is None:
        contests = [contest for contest in CONTESTS if contest.name in args.workload]
        hold(console, _extent(args), contests, args.traces, args.out, args.jobs, _asked(args))
        return
    if found := _extent_flags(args):
        raise Refused(f"--update plays what {args.update} holds: leave out {' '.join(found)}")
    before = update.read(args.update)
    extent = Extent(args.policy, before.loads, before.seeds, before.window_s, before.first_seed)
    hold(console, extent, update.contests(before), args.traces, args.out, args.jobs, _asked(args), before)


def _extent(args: argparse.Namespace) -> Extent:
    usual = QUICK if args.quick else FULL
    return Extent(
        args.policy,
        args.load or usual.loads,
        args.seeds or usual.seeds,
        args.window_s or usual.window_s,
        args.first_seed,
    )


def _asked(args: argparse.Namespace) -> str:
    """Return the command, reduced to the flags that change the table."""
    words = ["python -m loadtest tournament"]
    words += [f"--update {args.update.name}"] if args.update else []
    words += [f"--policy {','.join(args.policy)}"] if args.policy != list(BUILT_IN) else []
    return " ".join(words + _extent_flags(args))


def _extent_flags(args: argparse.Namespace) -> list[str]:
    """Return the flags that say what is played, but for the rules."""
    words = ["--quick"] if args.quick else []
    words += [f"--workload {','.join(args.workload)}"] if len(args.workload) < len(CONTESTS) else []
    words += [f"--load {','.join(f'{load:g}' for load in args.load)}"] if args.load else []
    words += [f"--seeds {args.seeds}"] if args.seeds else []
    words += [f"--first-seed {args.first_seed}"] if args.first_seed else []
    words += [f"--window-s {args.window_s:g}"] if args.window_s else []
    return words


def hold(
    console: Console,
    extent: Extent,
    contests: Sequence[Contest],
    traces: Path | None,
    out: Path,
    jobs: int,
    asked: str = "",
    before: scores.Scores | None = None,
) -> None:
    """Play a tournament of these contests, and write and print its results.

    `asked` is the command that the page names. With `before` the rules join that tournament's, at its load 1.0.

    Raises:
        Refused: there is nothing to play, or not all of `before`; and the errors of the lab.
    """
    sources = {contest.name: contest.source(traces) for contest in contests}
    why = "--traces is not given" if traces is None else "--traces holds no such file"
    left_out = [f"{one.title} ({one.trace}*): {why}" for one in contests if sources[one.name] is None]
    if before is not None and left_out:
        raise Refused(f"--update plays all workloads of the file; {left_out[0]}")
    for line in left_out:
        console.print(f"left out: {line}", style="yellow", highlight=False, markup=False)
    traced = [(contest, trace) for contest in contests if (trace := sources[contest.name]) is not None]
    if not traced:
        raise Refused("no workload is left to be played; name another --workload, or say where --traces are")
    for _, trace in traced:
        parse_source(trace)  # a file that cannot be read is named before anything is played
    known = {one.name: one for one in (before.workloads if before else [])}
    workloads = []
    with watched(console, Store(out), jobs) as sweep:
        for contest, trace in traced:
            study, was = extent.study(contest, trace), known.get(contest.name)
            if was is None:
                one, robin = sweep.saturations(study, f"{contest.title}: ")
            else:
                one, robin = Saturation(RULE, was.load_1_rate, was.load_1_calls_per_s), None
            said = f"{contest.title}: load 1.0 is {one.arrivals_per_s:.2f} calls/s"
            console.print(said, highlight=False, markup=False)
            results = sweep.results(contest.title, study.cells(one))
            workloads.append(scores.workload(contest, Findings(study, one, robin, results)))
    found = scores.Scores(
        asked=asked,
        code=dict.fromkeys(extent.policies, code_version()),
        quick=extent.quick,
        policies=list(extent.policies),
        loads=list(extent.loads),
        seeds=extent.seeds,
        window_s=extent.window_s,
        warm_up_s=WARM_UP_SHARE * extent.window_s,
        workloads=workloads,
        left_out=left_out,
        first_seed=extent.first_seed,
    )
    found = found if before is None else update.updated(before, found)
    _write(out, found)
    _say(console, found, out)


def _write(out: Path, found: scores.Scores) -> None:
    """Write results.json, the page and its pictures."""
    scores.write(out / scores.FILE, found)
    (out / page.FILE).write_text(page.page(found), encoding="utf-8")
    names = [name.removesuffix("_by_load") for name in page.PICTURES]
    for workload in found.workloads:
        for name, png in plots.curves(workload, names).items():
            (out / page.picture(workload, name)).write_bytes(png)


def _say(console: Console, found: scores.Scores, out: Path) -> None:
    for place, one in enumerate(overall(found)[:5], 1):
        line = f"{place}. {one.policy}: goodput {one.goodput.mean:.3f}, sustained load {one.sustained.mean:.3f}"
        console.print(line, highlight=False, markup=False)
    console.print(
        f"{found.judged} loses {len(losses(found))} matches; {page.FILE}, plots and {scores.FILE} are in {out}"
    )

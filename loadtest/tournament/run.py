"""The command: select contests, play, write."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from loadtest.lab.cell import code_version
from loadtest.lab.findings import Findings
from loadtest.lab.progress import watched
from loadtest.lab.run import Refused, guarded
from loadtest.lab.store import Store
from loadtest.tournament import page, plots, scores
from loadtest.tournament.contests import CONTESTS, FULL, QUICK, WARM_UP_SHARE, Contest, Extent
from loadtest.tournament.ranking import losses, overall
from loadtest.workload.source import parse_source
from policies.registry import BUILT_IN


def run(args: argparse.Namespace) -> int:
    console = Console()
    return guarded(console, args.out, lambda: _run(args, console))


def _run(args: argparse.Namespace, console: Console) -> None:
    contests = [contest for contest in CONTESTS if contest.name in args.workload]
    hold(console, _extent(args), contests, args.traces, args.out, args.jobs, _asked(args))


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
    words += [f"--policy {','.join(args.policy)}"] if args.policy != list(BUILT_IN) else []
    words += ["--quick"] if args.quick else []
    words += [f"--workload {','.join(args.workload)}"] if len(args.workload) < len(CONTESTS) else []
    words += [f"--load {','.join(f'{load:g}' for load in args.load)}"] if args.load else []
    words += [f"--seeds {args.seeds}"] if args.seeds else []
    words += [f"--first-seed {args.first_seed}"] if args.first_seed else []
    words += [f"--window-s {args.window_s:g}"] if args.window_s else []
    return " ".join(words)


def hold(
    console: Console,
    extent: Extent,
    contests: Sequence[Contest],
    traces: Path | None,
    out: Path,
    jobs: int,
    asked: str,
) -> None:
    """Play a tournament of these contests, and write and print its results.

    `asked` is the command that the page names.

    Raises:
        Refused: there is nothing to play; and the errors of the lab.
    """
    sources = {contest.name: contest.source(traces) for contest in contests}
    why = "--traces is not given" if traces is None else "--traces holds no such file"
    left_out = [f"{one.title} ({one.trace}*): {why}" for one in contests if sources[one.name] is None]
    for line in left_out:
        console.print(f"left out: {line}", style="yellow", highlight=False, markup=False)
    traced = [(contest, trace) for contest in contests if (trace := sources[contest.name]) is not None]
    if not traced:
        raise Refused("no workload is left to be played; name another --workload, or say where --traces are")
    for _, trace in traced:
        parse_source(trace)  # a file that cannot be read is named before anything is played
    workloads = []
    with watched(console, Store(out), jobs) as sweep:
        for contest, trace in traced:
            study = extent.study(contest, trace)
            one, robin = sweep.saturations(study, f"{contest.title}: ")
            said = f"{contest.title}: load 1.0 is {one.arrivals_per_s:.2f} calls/s"
            console.print(said, highlight=False, markup=False)
            results = sweep.results(contest.title, study.cells(one))
            workloads.append(scores.workload(contest, Findings(study, one, results), robin))
    found = scores.Scores(
        asked=asked,
        code=code_version(),
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

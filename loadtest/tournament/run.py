"""The command: select contests, estimate, play, write."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.lab import plots
from loadtest.lab.run import INTERRUPTED
from loadtest.lab.run_cell import RuleFailed
from loadtest.lab.saturation import SaturationError
from loadtest.lab.store import Store, StoreError
from loadtest.lab.sweep import Sweep, SweepError
from loadtest.tournament import page, scores, update
from loadtest.tournament.contests import CONTESTS, WARM_UP_SHARE, Contest, Extent, full, quick
from loadtest.tournament.match import Games, Played
from loadtest.tournament.overall import overall
from loadtest.tournament.pace import Course, Pace, duration
from loadtest.tournament.ranking import losses
from loadtest.workload.errors import WorkloadError
from loadtest.workload.source import parse_source
from policies.registry import BUILT_IN


def run(args: argparse.Namespace) -> int:
    """Run the command and return the exit code: 2 if the user has to correct something first."""
    if args.update is not None:
        return _update(args)
    contests = [contest for contest in CONTESTS if contest.name in args.workload]
    return hold(_extent(args), contests, args.traces, args.out, args.jobs, _asked(args))


def _update(args: argparse.Namespace) -> int:
    """Play rules of a finished tournament again, and return the exit code."""
    console = Console()
    if found := _extent_flags(args):
        return _refuse(console, f"--update plays what {args.update} holds: leave out {' '.join(found)}")
    try:
        before = update.read(args.update)
        contests = update.contests(before)
    except update.UpdateError as error:
        return _refuse(console, str(error))
    extent = update.extent(before, args.policy)
    return hold(extent, contests, args.traces, args.out, args.jobs, _asked(args), before)


def _extent(args: argparse.Namespace) -> Extent:
    usual = quick(args.policy) if args.quick else full(args.policy)
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
    extent: Extent,
    contests: Sequence[Contest],
    traces: Path | None,
    out: Path,
    jobs: int,
    asked: str = "",
    before: scores.Scores | None = None,
) -> int:
    """Play a tournament of these contests and return the exit code.

    `asked` is the command that the page names. With `before` the rules join that tournament's, at its load 1.0.
    """
    console = Console()
    try:
        courses = _courses(extent, contests, traces, before)
        left_out = _left_out(contests, courses, traces)
        if before is not None and left_out:
            return _refuse(console, f"--update plays all workloads of the file; {left_out[0]}")
        for line in left_out:
            console.print(f"left out: {line}", style="yellow", highlight=False, markup=False)
        if not courses:
            return _refuse(
                console, "no workload is left to be played; name another --workload, or say where --traces are"
            )
        store = Store(out)
        played = _play(console, store, courses, extent, jobs)
    except (StoreError, SaturationError, RuleFailed, SweepError, WorkloadError) as error:
        return _refuse(console, str(error))
    except KeyboardInterrupt:
        console.print(f"\nstopped; what had finished is kept in {out}: the same command goes on from there")
        return INTERRUPTED
    found = _scores(extent, played, left_out, asked)
    found = found if before is None else update.updated(before, found)
    _write(out, found)
    _say(console, found, out)
    return 0


def _refuse(console: Console, problem: str) -> int:
    console.print(problem, style="red", highlight=False, markup=False)
    return 2


def _courses(
    extent: Extent, contests: Sequence[Contest], traces: Path | None, before: scores.Scores | None
) -> list[Course]:
    """Return the courses whose traces exist.

    Raises:
        WorkloadError: a trace cannot be read.
    """
    courses, known = [], {} if before is None else update.load_1(before)
    for contest in contests:
        trace = contest.source(traces)
        if trace is not None:
            parse_source(trace)
            courses.append(Course(contest, extent.study(contest, trace), known.get(contest.name)))
    return courses


def _left_out(contests: Sequence[Contest], courses: Sequence[Course], traces: Path | None) -> list[str]:
    """Return a line for each contest that is not played."""
    there = {course.contest.name for course in courses}
    why = "--traces is not given" if traces is None else "--traces holds no such file"
    return [f"{contest.title} ({contest.trace}*): {why}" for contest in contests if contest.name not in there]


def _play(console: Console, store: Store, courses: Sequence[Course], extent: Extent, jobs: int) -> list[Played]:
    if store.foreign:
        console.print(f"{store.path}: {store.foreign} cells of other code are left out", style="yellow")
    pace = Pace(courses, jobs)
    with _bar(console) as bar, Sweep(store, jobs) as sweep:
        task = bar.add_task("", total=1.0, left="")

        def report(what: str) -> None:
            bar.update(task, description=what, completed=pace.share(), left=_left(pace))

        games = Games(courses, sweep, pace, report, lambda line: console.print(line, highlight=False, markup=False))
        games.firsts()
        console.print(_estimate(extent, courses, pace, jobs), highlight=False, markup=False)
        return games.play()


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=console,
        transient=True,
    )


def _left(pace: Pace) -> str:
    return f"{duration(pace.left_s())} left" if pace.statistics()["cells"] else ""


def _estimate(extent: Extent, courses: Sequence[Course], pace: Pace, jobs: int) -> str:
    cells = len(courses) * len(extent.policies) * len(extent.loads) * extent.seeds
    size = "a look, not to be published: " if extent.quick else ""
    return (
        f"{size}{len(extent.policies)} rules x {len(courses)} workload(s) x {len(extent.loads)} loads x {extent.seeds}"
        f" seed(s) = {cells:,} cells of {extent.window_s:g} s, and the search for load 1.0 of each. By a first cell of"
        f" each workload: {duration(pace.left_s())} with {jobs} process(es), less what is kept from before."
    )


def _scores(extent: Extent, played: Sequence[Played], left_out: Sequence[str], asked: str) -> scores.Scores:
    workloads = [scores.workload(one.course.contest, one.findings) for one in played]
    return scores.scores(extent, workloads, left_out, WARM_UP_SHARE * extent.window_s, asked)


def _write(out: Path, found: scores.Scores) -> None:
    """Write results.json, the page and its pictures."""
    scores.write(out / scores.FILE, found)
    (out / page.FILE).write_text(page.page(found), encoding="utf-8")
    names = [name.removesuffix("_by_load") for name in page.PICTURES]
    for workload in found.workloads:
        for name, png in plots.curves(scores.Curves(workload, found.policies, found.loads), names).items():
            (out / page.picture(workload, name)).write_bytes(png)


def _say(console: Console, found: scores.Scores, out: Path) -> None:
    for place, one in enumerate(overall(found, found.workloads)[:5], 1):
        console.print(
            f"{place}. {one.policy}: goodput {one.goodput.mean:.3f}, sustained load {one.sustained.mean:.3f}",
            highlight=False,
            markup=False,
        )
    console.print(
        f"{found.judged} loses {len(losses(found))} matches; {page.FILE}, plots and {scores.FILE} are in {out}"
    )

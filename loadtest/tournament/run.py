"""The command: select contests, play, write."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from loadtest.lab.findings import Findings
from loadtest.lab.progress import Watched, watched
from loadtest.lab.report import plots
from loadtest.lab.run import INTERRUPTED
from loadtest.lab.run_cell import RuleFailed
from loadtest.lab.saturation import Saturation, SaturationError
from loadtest.lab.store import Store, StoreError
from loadtest.lab.study import Study
from loadtest.lab.sweep import SweepError
from loadtest.tournament import page, scores, update
from loadtest.tournament.contests import CONTESTS, WARM_UP_SHARE, Contest, Extent, full, quick
from loadtest.tournament.overall import overall
from loadtest.tournament.ranking import losses
from loadtest.workload.errors import WorkloadError
from loadtest.workload.source import parse_source
from policies.registry import BUILT_IN


@dataclass(frozen=True, slots=True)
class Course:
    """A contest to be played; `load_1` if it is known before."""

    contest: Contest
    study: Study
    load_1: Saturation | None = None


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
        with watched(console, store, jobs) as sweep:
            workloads = [scores.workload(one.contest, _findings(console, sweep, one)) for one in courses]
    except (StoreError, SaturationError, RuleFailed, SweepError, WorkloadError) as error:
        return _refuse(console, str(error))
    except KeyboardInterrupt:
        console.print(f"\nstopped; what had finished is kept in {out}: the same command goes on from there")
        return INTERRUPTED
    found = scores.scores(extent, workloads, left_out, WARM_UP_SHARE * extent.window_s, asked)
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


def _findings(console: Console, sweep: Watched, course: Course) -> Findings:
    title, study = course.contest.title, course.study
    one, robin = sweep.saturations(study, f"{title}: ") if course.load_1 is None else (course.load_1, None)
    console.print(f"{title}: load 1.0 is {one.arrivals_per_s:.2f} calls/s", highlight=False, markup=False)
    return study.findings(one, robin, sweep.results(title, study.cells(one)))


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

"""The commands: what is played, and the files."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from backends.engine.profile import load_profile
from loadtest.fleet.process import INTERRUPTED
from loadtest.lab import flags
from loadtest.lab.cell import code_version
from loadtest.lab.progress import watched
from loadtest.lab.run_cell import RuleFailed
from loadtest.lab.saturation import SaturationError
from loadtest.lab.sources import drawn
from loadtest.lab.store import Store, StoreError
from loadtest.lab.sweep import SweepError
from loadtest.tournament import plots
from loadtest.tournament.contests import CONTESTS, FULL, QUICK
from loadtest.tournament.page import PICTURES, page, picture
from loadtest.tournament.ranking import losses, overall
from loadtest.tournament.scores import FILE, Scores, workload, write
from loadtest.tournament.study import Extent, Study
from loadtest.workload.errors import WorkloadError
from loadtest.workload.source import parse_source
from policies.registry import BUILT_IN


class Refused(Exception):
    """The command cannot run like this; the message says what to correct."""


def tournament(args: argparse.Namespace) -> int:
    return _guarded(args, partial(_tournament, args))


def sim(args: argparse.Namespace) -> int:
    return _guarded(args, partial(_sim, args))


def _guarded(args: argparse.Namespace, play: Callable[[Console], None]) -> int:
    """Run a command that stores its cells, and return the exit code.

    It is 2 if the user has to correct something, which is printed, and 130 after Ctrl-C.
    """
    console = Console(highlight=False, markup=False)
    try:
        play(console)
    except (Refused, StoreError, SaturationError, RuleFailed, SweepError, WorkloadError) as error:
        console.print(str(error), style="red")
        return 2
    except KeyboardInterrupt:
        console.print(f"stopped; what had finished is kept in {args.out}: the same command goes on from there")
        return INTERRUPTED
    return 0


def _sim(args: argparse.Namespace, console: Console) -> None:
    wrong = flags.problem(args) or _unreadable(args)
    if wrong is not None:
        raise Refused(wrong)
    extent = Extent(args.policy, args.load, args.seeds, args.window_s, args.first_seed)
    study = Study("trace", "trace", args.trace, flags.setting(args), extent)
    asked = shlex.join(["python", "-m", "loadtest", *sys.argv[1:]])
    _write(args.out, "sim", play(console, [study], args, asked))
    print((args.out / "sim.md").read_text(encoding="utf-8"))


def _unreadable(args: argparse.Namespace) -> str | None:
    """Return why the trace cannot be played; None if it can."""
    try:
        found = drawn(args.trace, args.first_seed, args.window_s, 1.0, args.block_tokens)
    except WorkloadError as error:
        return f"--trace: {error}"
    if not found.plan.sessions:
        return f"--trace {args.trace} has no session in the window of seed {args.first_seed}; make --window-s longer"
    kv_tokens = args.kv_tokens or load_profile(args.profile).kv_tokens
    block_tokens = args.block_tokens or found.plan.block_tokens
    if kv_tokens >= 2 * block_tokens:  # vLLM never uses one of its blocks
        return None
    return (
        f"a KV cache of {kv_tokens} tokens has no room for two blocks of {block_tokens}; take more --kv-tokens"
        " or smaller --block-tokens"
    )


def _tournament(args: argparse.Namespace, console: Console) -> None:
    extent, studies, left_out = _extent(args), [], []
    for contest in (one for one in CONTESTS if one.name in args.workload):
        source = contest.source(args.traces)
        if source is None:
            why = "--traces is not given" if args.traces is None else "--traces holds no such file"
            left_out.append(f"{contest.title} ({contest.trace}*): {why}")
            console.print(f"left out: {left_out[-1]}", style="yellow")
            continue
        parse_source(source)  # a file that cannot be read is named before anything is played
        studies.append(contest.study(source, extent))
    if not studies:
        raise Refused("no workload is left to be played; name another --workload, or say where --traces are")
    found = play(console, studies, args, _asked(args), left_out, round_robin=True)
    _write(args.out, "tournament", found)
    for place, one in enumerate(overall(found)[:5], 1):
        goodput, sustained = one.goodput.mean, one.sustained.mean
        console.print(f"{place}. {one.policy}: goodput {goodput:.3f}, sustained load {sustained:.3f}")
    lost = len(losses(found))
    console.print(f"{found.judged} loses {lost} matches; tournament.md, plots and {FILE} are in {args.out}")


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


def play(
    console: Console,
    studies: Sequence[Study],
    args: argparse.Namespace,
    asked: str,
    left_out: Sequence[str] = (),
    *,
    round_robin: bool = False,
) -> Scores:
    """Play the missing cells of studies of one extent. `asked` is the command that the page names.

    `round_robin`: find its saturation too.
    """
    extent, workloads = studies[0].extent, []
    with watched(console, Store(args.out), args.jobs) as sweep:
        for study in studies:
            tried = partial(sweep.tried, f"{study.title}: ")
            one = study.saturation(tried)
            robin = study.round_robin(tried) if round_robin else None
            console.print(f"{study.title}: load 1.0 is {one.arrivals_per_s:.2f} calls/s")
            workloads.append(workload(study, one, robin, sweep.results(study.title, study.cells(one))))
    return Scores(
        asked=asked,
        code=code_version(),
        quick=extent.quick,
        policies=list(extent.policies),
        loads=list(extent.loads),
        seeds=extent.seeds,
        window_s=extent.window_s,
        warm_up_s=studies[0].setting.models.warm_up_s,
        workloads=workloads,
        left_out=list(left_out),
        first_seed=extent.first_seed,
    )


def _write(out: Path, name: str, found: Scores) -> None:
    """Write results.json, the page and its pictures."""
    write(out / FILE, found)
    (out / f"{name}.md").write_text(page(found, name), encoding="utf-8")
    measures = [one.removesuffix("_by_load") for one in PICTURES]
    for one in found.workloads:
        for what, png in plots.curves(one, measures).items():
            (out / picture(name, one, what)).write_bytes(png)

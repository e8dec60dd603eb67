"""The command: its flags as a plan's parts, the sizes one after the other, and the report."""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path

import msgspec
from rich.console import Console

from backends.engine.profile import load_profile
from loadtest.arguments import INPUT_ERROR, above_zero, positive, profile_name
from loadtest.fleet.process import INTERRUPTED
from loadtest.lab.cell import Slo
from loadtest.lab.flags import policies
from loadtest.lab.models import models_of
from loadtest.lab.run_cell import RuleFailed
from loadtest.lab.store import Store, StoreError
from loadtest.lab.sweep import Sweep, SweepError
from loadtest.plan.log_trace import log_trace
from loadtest.plan.report import WORDS, Report, as_json, show
from loadtest.plan.sizing import AGGREGATED, SPLIT, WRONG_BY, Candidate, Kind, Size, Sizing
from loadtest.plan.traffic import Traffic, traffic
from loadtest.plan.trials import Goal, Trial, Trials
from loadtest.report.verdict import Answer
from loadtest.workload.errors import WorkloadError
from router.config.load import load
from router.config.problems import ConfigError
from router.placement.admission.classes import RequestClass
from router.requests.layers.classes.claims import class_of

WIDTH = 130
_LIMITS = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2el": "e2e_ms"}


class InputError(Exception):
    """A flag has a wrong value; the message names it and what to write."""


def run(args: argparse.Namespace) -> int:
    """Plan and print; return the verdict on the first rule's best fleet, or 3 if the input is wrong."""
    try:
        with _folder(args.out) as folder:
            report = _planned(args, folder)
            if args.json is not None:
                plan = as_json(report) | {"cpu_s": cpu_s()}
                args.json.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")
    except (InputError, argparse.ArgumentTypeError, WorkloadError, StoreError, RuleFailed, SweepError) as error:
        print(f"warmroute plan: {error}", file=sys.stderr)
        return INPUT_ERROR
    except OSError as error:
        print(f"warmroute plan: {error.filename}: {error.strerror}", file=sys.stderr)
        return INPUT_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    console = Console()
    show(Console(width=max(console.width, WIDTH)), report)
    return int(answer(report))


def cpu_s() -> float:
    """Return the CPU time of this process and of those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return round(sum(one.ru_utime + one.ru_stime for one in used), 1)


def answer(report: Report) -> Answer:
    """Return the verdict on the first rule: met if one of its fleets holds, undecided if one may."""
    if report.workers is not None:
        return Answer.MET
    own = [size.fleet.verdict.answer for size in report.sizes if size.kind.policy == report.sizes[0].kind.policy]
    return Answer.UNDECIDED if Answer.UNDECIDED in own else Answer.NOT_MET


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="warmroute-plan-") as folder:
        yield Path(folder)


def _planned(args: argparse.Namespace, folder: Path) -> Report:
    kinds, goal = _kinds(args), _goal(args)
    found = _traffic(args, kinds[0].candidate, folder)
    profiles = [load_profile(name) for name in dict.fromkeys(kind.candidate.profile for kind in kinds)]
    progress = Console(stderr=True)
    with Sweep(Store(folder), args.jobs) as sweep:
        sizing = Sizing(Trials(sweep.results, goal, models_of(args), args.jobs), found, args.seeds, _heard(progress))
        sizes = sizing.sizes(kinds)
        best = cheapest([size for size in sizes if size.met and size.kind.policy == kinds[0].policy])
        if best is None:
            return Report(found, goal, profiles, sizes, None, (), {}, ())
        peak_hour, if_wrong = sizing.around(best, () if args.quick else WRONG_BY)
        report = Report(found, goal, profiles, sizes, best, peak_hour, if_wrong, ())
        if args.quick or report.workers is None:
            return report
        return replace(report, by_hour=sizing.by_hour(best, report.workers))


def cheapest(sizes: Sequence[Size]) -> Size | None:
    """Return the size of the least cost; of equal or unknown costs the one of the fewest workers."""
    return min(
        sizes, key=lambda size: (inf if size.cost_per_hour is None else size.cost_per_hour, size.workers), default=None
    )


def _heard(console: Console) -> Callable[[Trial], None]:
    def tried(trial: Trial) -> None:
        reached, word = trial.attained.share, WORDS[trial.verdict.answer.name]
        console.print(
            f"{trial.shape}: {reached:.4f} of {trial.verdict.total:,} calls, {len(trial.measures)} seeds: {word}",
            highlight=False,
            markup=False,
        )

    return tried


def _traffic(args: argparse.Namespace, first: Candidate, folder: Path) -> Traffic:
    source = args.trace
    if args.log is None and args.last_s is not None:
        raise InputError("--last-s is for --log; a trace is taken whole")
    if args.log is not None:
        source = str(folder / "log.jsonl")
        log_trace(args.log, Path(source), args.last_s)
    found = traffic(source, load_profile(first.profile), args.window_s, args.warm_up_s, folder)
    return found if args.log is None else replace(found, source=", ".join(map(str, args.log)))


def _kinds(args: argparse.Namespace) -> list[Kind]:
    candidates = [candidate(text, args.max_workers) for text in args.candidate]
    priced = {one.price_per_hour is not None for one in candidates}
    if len(priced) > 1:
        raise InputError("--candidate: give a price to all candidates or to none, or their costs cannot be compared")
    roles = [role for role in args.roles.split(",") if role]
    if not roles or not set(roles) <= {AGGREGATED, SPLIT}:
        raise InputError(f"--roles {args.roles!r}: write {AGGREGATED}, {SPLIT}, or both with a comma")
    rules = policies(args.policy)
    return [Kind(one, rule, role) for rule in rules for one in candidates for role in dict.fromkeys(roles)]


def candidate(text: str, most: int) -> Candidate:
    """Parse ``PROFILE[:price=P][:most=N]``.

    Raises:
        InputError: there is no such key.
        ArgumentTypeError: there is no such profile, or a value is wrong.
    """
    name, *pairs = text.split(":")
    profile_name(name)
    price: float | None = None
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key == "price":
            price = above_zero(value)
        elif key == "most":
            most = positive(value)
        else:
            raise InputError(f"--candidate {text}: {pair!r} is neither price=P nor most=N")
    return Candidate(name, price, most)


def _goal(args: argparse.Namespace) -> Goal:
    classes = () if args.classes is None else classes_in(args.classes)
    if not args.goodput and not any(one.ttft_s or one.tpot_s for one in classes):
        raise InputError("there is no service level: write --goodput, or --classes FILE with classes that have an slo")
    if classes and SPLIT in args.roles:
        raise InputError(f"--classes with --roles {args.roles}: classes are simulated without roles alone")
    return Goal(_slo(args.goodput), args.attainment, args.growth, classes)


def classes_in(path: Path) -> tuple[RequestClass, ...]:
    """Return the `classes` of a file of settings.

    Raises:
        InputError: it cannot be read, or has no classes.
    """
    try:
        found = load({}, {}, path, ()).config.classes
    except ConfigError as error:
        raise InputError(f"--classes: {error}") from None
    if not found:
        raise InputError(f"--classes {path}: it has no `classes:`")
    return tuple(class_of(name, one) for name, one in found.items())


def _slo(texts: Sequence[str]) -> Slo:
    found: dict[str, float] = {}
    for text in texts:
        name, _, limit = text.partition(":")
        if name not in _LIMITS:
            raise InputError(f"--goodput {text}: write NAME:MS with a name of {', '.join(_LIMITS)}")
        found[_LIMITS[name]] = above_zero(limit)
    return Slo(**found)

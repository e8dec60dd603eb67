"""Compare the cost of two builds of the gateway: ``python -m loadtest.bench.pairs --build NAME OLD NEW``.

OLD and NEW are environments in which Warmroute is installed; with ``--everything-on`` both run with API keys, limits,
routes and a decision log. ``--features ENVIRONMENT`` compares one build with itself: its defaults as old, and all of
that as new (`loadtest.bench.features`), or each feature of ``--only`` by itself. ``--sidecar ENVIRONMENT`` has a
gateway with defaults and one worker as old, and a sidecar beside that worker as new. Each pair starts both gateways
again, each with stand-in workers of its own. It measures old, new, new, old; every second pair reverses the order. A
load generator from this source tree drives both. CPU time is that of the gateway's process tree. The result is the
median over pairs of new / old, with a bootstrap interval. ``--measure first-byte`` adds what the gateway adds to the
time to the first body byte, as new - old: both get the requests of a third of the slower one's capacity.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop

from loadtest.arguments import above_zero, positive
from loadtest.bench.features import NAMES, Features
from loadtest.bench.intervals import interval
from loadtest.bench.measures.catalogue import COST, FIGURES, Kind
from loadtest.bench.measures.first_byte import ADDED, find_capacity
from loadtest.bench.measures.subject import Sample, Setting, Subject
from loadtest.bench.proxies.entrant import Place, standins
from loadtest.bench.proxies.warmroute import exact, sidecar
from loadtest.bench.rounds import MEASURE_LIMIT_S, measured

MEASURES = ("request-2k", "tokens-64")
_FIRST_BYTE = "first-byte"
COMPARED = {kind.name: kind for kind in COST if kind.name in (*kind.figures, _FIRST_BYTE)}
"""The measures of CPU time per request or token, and of the time to the first byte, by name."""
_OLD_FIRST = ("old", "new", "new", "old")
_NEW_FIRST = ("new", "old", "old", "new")


@dataclass(frozen=True, slots=True)
class Build:
    """Two environments to compare, and the name of their rows. The new one has `features` on, and with `everything_on`
    so has the old one; `sidecar`: the new one is a sidecar."""

    name: str
    old: Path
    new: Path
    features: Features | None = None
    sidecar: bool = False
    everything_on: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """A figure of both sides in one pair: CPU microseconds per request or token, or added milliseconds."""

    old: float
    new: float

    def change(self, figure: str) -> float:
        """Return new / old, or new - old for a figure that may be near zero."""
        return self.new / self.old if FIGURES[figure].relative else self.new - self.old


def main() -> int:
    """Measure and print a table; return 1 if any request failed."""
    parser = _parser()
    args = parser.parse_args()
    if args.only and not args.features:
        parser.error("--only chooses from --features: give that, too")
    on = args.everything_on
    all_on = Features() if on else None
    builds = [Build(name, Path(old), Path(new), features=all_on, everything_on=on) for name, old, new in args.build]
    chosen_features = {name: Features((name,)) for name in args.only} or {"features on": Features()}
    builds += [
        Build(name, Path(one), Path(one), features=features)
        for one in args.features
        for name, features in chosen_features.items()
    ]
    builds += [Build("sidecar", Path(one), Path(one), sidecar=True) for one in args.sidecar]
    if not builds:
        parser.error("nothing to compare: give --build, --features or --sidecar")
    if args.sidecar and args.workers > 1:
        parser.error("a sidecar has one worker: leave out --workers, or --sidecar")
    costs: dict[tuple[str, str], list[Cost]] = {}
    for number in range(args.pairs):
        for build in builds:
            try:
                taken = _pair(build, Setting(window_s=args.window_s), number, args.measure or MEASURES, args.workers)
            except FailedRequestsError as error:
                print(f"{build.name}: {error}", file=sys.stderr)
                return 1
            for figure, cost in taken.items():
                costs.setdefault((build.name, figure), []).append(cost)
            said = ", ".join(f"{figure} {cost.change(figure):.3f}" for figure, cost in taken.items())
            print(f"pair {number + 1}/{args.pairs}, {build.name}: {said}", flush=True)
    print("\n".join(table(costs)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.pairs", description=__doc__)
    parser.add_argument(
        "--build",
        nargs=3,
        action="append",
        default=[],
        metavar=("NAME", "OLD", "NEW"),
        help="two environments to compare; repeat for further builds",
    )
    parser.add_argument(
        "--everything-on", action="store_true", help="give both environments of --build keys, limits, routes and a log"
    )
    parser.add_argument(
        "--features",
        action="append",
        default=[],
        metavar="ENVIRONMENT",
        help="compare the defaults of one build with its keys, limits, routes and log; repeat for further builds",
    )
    parser.add_argument(
        "--only",
        choices=NAMES,
        action="append",
        default=[],
        metavar="FEATURE",
        help=f"with --features: compare this feature alone, of {', '.join(NAMES)}; repeat for a row each",
    )
    parser.add_argument(
        "--sidecar",
        action="append",
        default=[],
        metavar="ENVIRONMENT",
        help="compare a gateway with one worker with a sidecar of the same build; repeat for further builds",
    )
    parser.add_argument(
        "--measure",
        choices=tuple(COMPARED),
        action="append",
        metavar="NAME",
        help=f"measure this, of %(choices)s; repeat for more (default {' and '.join(MEASURES)})",
    )
    parser.add_argument("--workers", type=positive, default=1, help="workers of each gateway (default %(default)s)")
    parser.add_argument("--pairs", type=positive, default=12, help="pairs of each build (default %(default)s)")
    parser.add_argument(
        "--window-s", type=above_zero, default=1.0, help="length of one of four windows (default %(default)g)"
    )
    return parser


class FailedRequestsError(RuntimeError):
    """Requests failed, so that the run does not count; the message holds some reasons."""


def _pair(build: Build, setting: Setting, number: int, measures: Sequence[str], workers: int) -> dict[str, Cost]:
    """Start both gateways, take each measure of both, and stop them."""
    with tempfile.TemporaryDirectory(prefix="warmroute-pairs-") as folder, ExitStack() as stack:
        sides = {
            side: _started(side, made, Path(folder) / side, stack, workers)
            for side, made in (("old", _old(build)), ("new", build))
        }
        order = _NEW_FIRST if number % 2 else _OLD_FIRST
        return compared(sides, order, setting, measures)


def _old(build: Build) -> Build:
    return Build(build.name, build.old, build.old, features=build.features if build.everything_on else None)


def _started(side: str, build: Build, folder: Path, stack: ExitStack, workers: int) -> Subject:
    folder.mkdir()
    first, *others = stack.enter_context(standins(workers, folder, kv_events=True))
    place = Place(first, folder, tuple(others))
    program = [str(build.new.absolute() / "bin" / "warmroute")]
    proxy = stack.enter_context(
        (sidecar(side, program) if build.sidecar else exact(side, program, build.features))(place)
    )
    return Subject(side, proxy.url, proxy.pid, place.worker_url, 0, lines=proxy.lines)


def compared(
    sides: Mapping[str, Subject], order: Sequence[str], setting: Setting, measures: Sequence[str]
) -> dict[str, Cost]:
    """Take each measure of both sides, in windows of this order."""
    costs: dict[str, Cost] = {}
    for kind in map(COMPARED.__getitem__, measures):
        if kind.name == _FIRST_BYTE:
            _share_capacity(sides.values(), setting)
        costs |= _costs(kind, sides, order, setting)
    return costs


def _share_capacity(sides: Collection[Subject], setting: Setting) -> None:
    """Give both sides the capacity of the slower one, so that they get the same load.

    Raises:
        FailedRequestsError: a side answered no request.
    """
    slower = min([uvloop.run(_capacity(subject, setting)) for subject in sides])
    for subject in sides:
        subject.capacity = slower


async def _capacity(subject: Subject, setting: Setting) -> float:
    try:
        async with asyncio.timeout(MEASURE_LIMIT_S):
            capacity = await find_capacity(subject, setting)
    except (OSError, EOFError) as error:  # TimeoutError is an OSError
        raise FailedRequestsError(f"the capacity of {subject.name}: {error or 'no answer in time'}") from None
    if not capacity:
        raise FailedRequestsError(f"the capacity of {subject.name}: no request was answered")
    return capacity


def _costs(kind: Kind, sides: Mapping[str, Subject], order: Sequence[str], setting: Setting) -> dict[str, Cost]:
    samples: dict[str, list[Mapping[str, Sample]]] = {side: [] for side in sides}
    for side in order:
        samples[side].append(measured(kind, sides[side], setting))
    return {
        figure: Cost(*(per_unit([sample[figure] for sample in samples[side]]) for side in ("old", "new")))
        for figure in kind.figures
        if figure in (kind.name, *ADDED)
    }


def per_unit(samples: Sequence[Sample]) -> float:
    """Return the value over all samples together, weighted by their counts.

    Raises:
        FailedRequestsError: a request failed.
    """
    for sample in samples:
        if not sample.counts:
            raise FailedRequestsError("; ".join(sample.reasons[:2]) or sample.skipped)
    return sum(sample.value * sample.count for sample in samples) / sum(sample.count for sample in samples)


def table(costs: Mapping[tuple[str, str], Sequence[Cost]]) -> list[str]:
    """Return the results as lines of a Markdown table."""
    lines = [
        "| build | measure | old | new | change, median | 95 % interval | pairs |",
        "|---|---|---|---|---|---|---|",
    ]
    for (build, name), taken in costs.items():
        figure, changes = FIGURES[name], [cost.change(name) for cost in taken]
        low, high = interval(changes, statistics.median)
        old, new = statistics.median(cost.old for cost in taken), statistics.median(cost.new for cost in taken)
        sign, unit = ("", " x") if figure.relative else ("+", f" {figure.unit}")
        lines.append(
            f"| {build} | {figure.title}, {figure.unit} | {old:.{figure.digits}f} | {new:.{figure.digits}f} "
            f"| {statistics.median(changes):{sign}.3f}{unit} | {low:{sign}.3f} to {high:{sign}.3f} | {len(taken)} |"
        )
    return lines


if __name__ == "__main__":
    raise SystemExit(main())

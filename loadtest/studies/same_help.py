"""Other rules with hold and lanes around them: ``python -m loadtest.studies.same_help [--traces DIR] [--seeds 3]``.

The default rule has hold and lanes around it, and the field's rules have not. This study plays rules without and with
both, on the tournament's workloads in short windows at fixed rates. The tables compare mean TTFT and goodput with the
default's, in percent, paired by seed, with 95 % intervals. Positive figures say that the rule is worse. Every finished
run is one line of JSON in --out, and the same command resumes; --table prints what is there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from loadtest.lab.measures import Figures
from loadtest.lab.run_cell import run_cell
from loadtest.lab.store import Store
from loadtest.report.confidence import interval
from loadtest.studies.leave_one_out import Loss, compared, worse
from loadtest.studies.short.workloads import LOADS, WORKLOADS
from loadtest.tournament.contests import CONTESTS

DEFAULT, HELP = "marginal_cost", ":hold=true:lanes=true"
RULES = ("llmd_blend", "llmd_sticky", "lmetric", "lpwl", "dualmap")
"""The five rules that come next in the tournament, by goodput."""
CONTESTED = [contest.name for contest in CONTESTS]


class Run(NamedTuple):
    """The key of a run."""

    load: float
    seed: int
    policy: str
    workload: str


Runs = Mapping[Run, Figures]
Pair = tuple[Figures, Figures]


def runs_of(rules: Sequence[str], loads: Sequence[float], seeds: range, workloads: Sequence[str]) -> list[Run]:
    """Return the runs in the order in which they are played, the highest load first."""
    policies = [DEFAULT, *[f"{rule}{around}" for rule in rules for around in ("", HELP)]]
    return [Run(*one) for one in product(sorted(loads, reverse=True), seeds, policies, workloads)]


def losses(runs: Runs, policy: str) -> dict[tuple[str, float], Loss]:
    """Return how much worse a policy is than the default in each cell, over the seeds that both have played."""
    pairs: dict[tuple[str, float], list[Pair]] = {}
    for run, pair in _pairs(runs, policy).items():
        pairs.setdefault((run.workload, run.load), []).append(pair)
    return {cell: compared(found) for cell, found in sorted(pairs.items()) if len(found) > 1}


def overall(runs: Runs, policy: str) -> Loss | None:
    """Return how much worse a policy is over all cells. Each seed that has played every cell counts once.

    None if there are fewer than two.
    """
    by_seed: dict[int, list[Pair]] = {}
    for run, pair in _pairs(runs, policy).items():
        by_seed.setdefault(run.seed, []).append(pair)
    cells = len({(run.workload, run.load) for run in runs})
    means = [
        [fmean(part) for part in zip(*map(worse, found), strict=True)]
        for found in by_seed.values()
        if len(found) == cells
    ]
    return Loss(*map(interval, zip(*means, strict=True))) if len(means) > 1 else None


def _pairs(runs: Runs, policy: str) -> dict[Run, Pair]:
    """Return the default's figures and the policy's, by the policy's run."""
    ours = {run: runs.get(run._replace(policy=DEFAULT)) for run in runs if run.policy == policy}
    return {run: (default, runs[run]) for run, default in ours.items() if default is not None}


def tables(runs: Runs) -> Iterator[str]:
    """Yield the lines of two tables in Markdown: all cells together, and every cell."""
    policies = list(dict.fromkeys(run.policy for run in runs if run.policy != DEFAULT))
    found = {policy: by_cell for policy in policies if (by_cell := losses(runs, policy))}
    yield "| rule | mean TTFT | goodput | p99 TTFT | worse in | better in | cells |"
    yield "|---|---|---|---|---|---|---|"
    for policy, by_cell in found.items():
        whole = overall(runs, policy)
        said = "too few seeds | | |" if whole is None else f"{_figures(whole)} |"
        counts = [sum(one.counts for one in by_cell.values()), sum(one.gains for one in by_cell.values())]
        yield f"| `{policy}` | {said} {counts[0]} | {counts[1]} | {len(by_cell)} |"
    yield from ("", "| workload | load | rule | mean TTFT | goodput | p99 TTFT |", "|---|---|---|---|---|---|")
    for workload, load in sorted({cell for by_cell in found.values() for cell in by_cell}):
        for policy, by_cell in found.items():
            if (loss := by_cell.get((workload, load))) is not None:
                yield f"| {workload} | {load:g} | `{policy}` | {_figures(loss)} |"


def _figures(loss: Loss) -> str:
    return " | ".join(f"{one.mean:+.1f} ±{one.half:.1f}" for one in loss)


def main(argv: Sequence[str] | None = None) -> None:
    """Play what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="folder with the public traces; without it one workload misses")
    parser.add_argument("--out", type=Path, default=Path("same-help"), help="folder for results")
    parser.add_argument("--rules", nargs="+", default=list(RULES), metavar="RULE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS))
    parser.add_argument("--only", nargs="+", choices=CONTESTED, default=CONTESTED, metavar="WORKLOAD")
    parser.add_argument("--window-s", type=float, help="one length for all windows")
    parser.add_argument("--table", action="store_true", help="print what has been played, and play nothing")
    asked = parser.parse_args(argv)
    sources = {one.name: (one, one.source(asked.traces)) for one in WORKLOADS if one.name in asked.only}
    store, runs = Store(asked.out), {}
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    for run in runs_of(asked.rules, asked.loads, seeds, list(sources)):
        workload, source = sources[run.workload]
        if source is None:
            continue
        cell = workload.cell(source, run.policy, run.load, run.seed, asked.window_s)
        kept = store.get(cell)
        if kept is None and not asked.table:
            kept = store.add(cell, *run_cell(cell))
        if kept is not None:
            runs[run] = kept.measures.all
    print("\n".join(tables(runs)))


if __name__ == "__main__":
    main()

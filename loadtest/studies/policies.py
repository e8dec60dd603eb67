"""Compare rules at fixed rates: ``python -m loadtest.studies.policies [--trace FILE] [--seeds 3]``.

The cells are short cells of ``python -m loadtest sim``: four workers of one profile, with the last three quarters of
each window measured. The rates are about 0.6 and 0.95 of lpwl's saturation over one seed. They are fixed in the source,
so that other code meets the same traffic. The first row is the default rule before
docs/decisions/0007-learned-decode-steps.md. The second is the rule without the decode externality, the third
without the KV wait of docs/decisions/0009-kv-wait.md, and the fourth without a preference for KV space among equals.

With ``--contests`` the cells are those of the tournament: its fleets and prompts, windows of ``--window-s``, and loads
as factors of each generator's own rate. The last columns compare mean TTFT, p99 TTFT and goodput with the first row,
paired by seed, with 95 % t intervals.

``--tournament`` plays the tournament's fleets for 300 s each, at fractions of fixed rates, over at least two seeds. It
compares each rule with the first one, paired by seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from math import log, sqrt
from statistics import fmean, stdev
from typing import Any
from unittest.mock import patch

from loadtest.lab.cell import Cell, Fleet, Setting, Slo
from loadtest.lab.measures import Figures
from loadtest.lab.models import Models
from loadtest.lab.run_cell import run_cell
from loadtest.report.confidence import interval
from loadtest.studies.short.without import VARIANTS as PARTS
from loadtest.studies.short.without import replaceable
from loadtest.tournament.contests import CONTESTS, Contest, Extent
from policies.view import FleetView

CONTESTED = [contest.name for contest in CONTESTS]

PROFILE = "llama-3.1-70b-4xh100"
WITHOUT_KV_WAIT, WITHOUT_KV_SPACE = (f"marginal_cost without {part}" for part in ("KV wait", "KV space among equals"))
BEFORE, WITHOUT_EXTERNALITY = "marginal_cost before", "marginal_cost:stream_weight=0"
RULES = [
    BEFORE,
    WITHOUT_EXTERNALITY,
    WITHOUT_KV_WAIT,
    WITHOUT_KV_SPACE,
    "marginal_cost",
    "lpwl",
    "lmetric",
    "llmd_sticky",
    "cache_aware",
    "least_tokens",
]
WORKLOADS = {  # window in seconds, tokens per block, rate of load 1.0 (times the workload's own)
    "shared_prefixes": (40.0, 128, 7.3),
    "hot_prompt": (60.0, 128, 3.08),
    "documents_beside_chats": (240.0, 128, 1.30),
    "agents": (600.0, 512, 0.5),
    "no_reuse": (120.0, 128, 3.08),
    "multi_turn": (240.0, 128, 2.59),
    "rag": (120.0, 128, 1.0),
    "conversation_trace": (600.0, 512, 0.545),
}
TOURNAMENT_RATES = {  # of load 1.0
    "agents": 0.907,
    "documents_beside_chats": 1.164,
    "hot_prompt": 0.927,
    "multi_turn": 2.59,
    "no_reuse": 1.022,
    "shared_prefixes": 0.968,
}
TOURNAMENT_WINDOW_S = 300.0
BLOCK_TOKENS, SLO = 128, Slo(2_000.0, 200.0)


@contextmanager
def all_alike() -> Iterator[None]:
    """Count every running request as drawn by the same prefix: hot prefix spill before decision 0007."""
    with patch.object(FleetView, "running_share", lambda fleet, worker, request, blocks: 1.0):
        yield


VARIANTS: dict[str, tuple[str, Callable[[], AbstractContextManager[None]]]] = {
    BEFORE: (WITHOUT_EXTERNALITY, all_alike),
    WITHOUT_KV_WAIT: ("marginal_cost", PARTS["KV wait"].applied),
    WITHOUT_KV_SPACE: ("marginal_cost", PARTS["KV space among equals"].applied),
}


def cell(workload: str, source: str, rule: str, load: float, seed: int) -> Cell:
    """Return a cell of the short study."""
    window_s, block_tokens, rate = WORKLOADS[workload]
    models = replace(Models(), block_tokens=block_tokens, warm_up_s=window_s / 4)
    setting = Setting(Fleet(4, PROFILE), Slo(2_000.0, 100.0), models, window_s, regret=False)
    return Cell(source, rule, rate * load, seed, setting)


def contest_cell(contest: Contest, source: str, rule: str, load: float, seed: int, window_s: float) -> Cell:
    """Return a cell of the tournament."""
    setting = Extent((rule,), (load,), 1, window_s).study(contest, source).setting
    return Cell(source, rule, load, seed, setting)


def figures(played: Cell) -> Figures:
    """Run a cell; return its figures."""
    rule, changed = VARIANTS.get(played.policy, (played.policy, nullcontext))
    with changed():
        return run_cell(replace(played, policy=rule))[0].all


def contested(workload: str, rule: str, load: float, seed: int) -> Figures:
    """Run one cell on the tournament's fleet; return its figures."""
    known = {contest.name: contest for contest in CONTESTS}.get(workload)
    models = Models(block_tokens=known.block_tokens if known else BLOCK_TOKENS, warm_up_s=TOURNAMENT_WINDOW_S / 5)
    fleet, slo = (known.fleet, known.slo) if known else (Fleet(4, PROFILE), SLO)
    setting = Setting(fleet, slo, models, TOURNAMENT_WINDOW_S, regret=False)
    trace = known.trace if known else f"generator:{workload}"
    return run_cell(Cell(trace, rule, TOURNAMENT_RATES[workload] * load, seed, setting))[0].all


def print_contest(workload: str, load: float, rules: list[str], seeds: int) -> None:
    """Print the means of the first rule, and the other rules' differences from it with their standard errors."""
    print(f"\n{workload} at {load:g}, {seeds} seeds", flush=True)
    base = [contested(workload, rules[0], load, seed) for seed in range(seeds)]
    print(f"  {rules[0]}: " + ", ".join(f"{name} {fmean(getattr(run, name) for run in base):.4g}" for name in COMPARED))
    for rule in rules[1:]:
        runs = [contested(workload, rule, load, seed) for seed in range(seeds)]
        said = []
        for name in COMPARED:
            apart = [getattr(run, name) - getattr(first, name) for run, first in zip(runs, base, strict=True)]
            said.append(f"{name} {fmean(apart):+.3g} +- {stdev(apart) / sqrt(seeds):.2g}")
        print(f"  {rule}: " + ", ".join(said), flush=True)


def main() -> None:
    """Print a block of lines per workload and load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", help="the Mooncake conversation trace; left out without it")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="first seed of short cells and of --contests")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.6, 0.95])
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rules", nargs="+", default=RULES)
    parser.add_argument("--contests", nargs="+", choices=CONTESTED, help="cells of the tournament instead")
    parser.add_argument("--window-s", type=float, default=600.0, help="length of a contest's window")
    parser.add_argument("--tournament", action="store_true", help="the tournament's fleets, at rates set down here")
    args = parser.parse_args()
    if not replaceable() and any(rule in VARIANTS for rule in args.rules):
        parser.error("parts are left out by replacing Python functions: run from source, or name --rules")
    if args.tournament:
        if args.seeds < 2:
            parser.error("--tournament prints standard errors: it needs --seeds of at least 2")
        for workload in [name for name in args.only if name in TOURNAMENT_RATES]:
            for load in args.loads:
                print_contest(workload, load, args.rules, args.seeds)
        return
    for name, cells in (contests(args) if args.contests else short(args)).items():
        for load in args.loads:
            print_cell(name, partial(cells, load=load), load, args)


Cells = Callable[..., Cell]


def short(args: Any) -> dict[str, Cells]:
    """Return the cells of the short study by workload, as functions of rule, load and seed."""
    sources = {name: args.trace if name == "conversation_trace" else f"generator:{name}" for name in args.only}
    return {name: partial(cell, name, source) for name, source in sources.items() if source is not None}


def contests(args: Any) -> dict[str, Cells]:
    """Return the tournament's cells by workload, as functions of rule, load and seed."""
    found = {one: args.trace if one.recorded else one.trace for one in CONTESTS if one.name in args.contests}
    return {
        one.name: partial(contest_cell, one, source, window_s=args.window_s)
        for one, source in found.items()
        if source is not None
    }


def print_cell(workload: str, cells: Cells, load: float, args: Any) -> None:
    """Print means over the seeds, and paired differences from the first rule."""
    print(f"\n{workload} at {load:g}, {args.seeds} seeds")
    print(f"{'':44}{'TTFT ms':>9}{'p99':>9}{'E2E s':>8}{'TPOT ms':>9}{'goodput':>9}{'cached':>8}", end="")
    print(f"{'TTFT %':>17}{'p99 %':>17}{'goodput %':>17}", flush=True)
    first: list[Figures] = []
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    for rule in args.rules:
        runs = [figures(cells(rule=rule, seed=seed)) for seed in seeds]
        mean = {name: fmean(getattr(run, name) for run in runs) for name in SHOWN}
        ttft, p99, e2e, tpot, good, hit = mean.values()
        print(f"{rule:44}{ttft:9.0f}{p99:9.0f}{e2e / 1e3:8.2f}{tpot:9.1f}{good:9.3f}{hit:8.3f}", end="")
        print(against(first, runs) if first and args.seeds > 1 else "", flush=True)
        first = first or runs


def against(first: list[Figures], runs: list[Figures]) -> str:
    """Format how much longer mean and p99 TTFT are (geometric means, percent), and how much higher goodput (points)."""
    pairs = list(zip(first, runs, strict=True))
    means = interval([100.0 * log(run.ttft_mean_ms / base.ttft_mean_ms) for base, run in pairs])
    p99s = interval([100.0 * log(run.ttft_p99_ms / base.ttft_p99_ms) for base, run in pairs])
    higher = interval([100.0 * (run.goodput_share - base.goodput_share) for base, run in pairs])
    return "".join([f"{found.mean:+9.1f} ±{found.half:6.1f}" for found in (means, p99s, higher)])


COMPARED = ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "itl_p99_ms", "e2e_mean_ms", "goodput_share", "hit_share")
SHOWN = ("ttft_mean_ms", "ttft_p99_ms", "e2e_mean_ms", "tpot_mean_ms", "goodput_share", "hit_share")

if __name__ == "__main__":
    main()

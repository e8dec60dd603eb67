"""Rules side by side at fixed rates: ``python tests/bench/bench_policies.py [--trace FILE] [--seeds 3]``.

Cells of the policy lab, short ones: four workers of one profile, the last three quarters of each window measured. Rates
are what ``python -m loadtest sim`` found to be about 0.6 and 0.95 of lpwl's saturation over one seed; they are written
down here so that other code meets the same traffic. The first two rows are the default rule before
docs/decisions/0007-crowds-and-steps.md, and with its half: without a price for joining decodes.

``--tournament`` plays the tournament's workloads on the tournament's fleets instead (conversations beside them), 300 s
each, at fractions of rates found the same way over two seeds; rules are compared with the first one, seed by seed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from loadtest.lab.cell import Cell, Fleet, Setting, Slo
from loadtest.lab.measures import Figures
from loadtest.lab.models import Models
from loadtest.lab.play import play
from loadtest.tournament.contests import CONTESTS
from policies.sharing import Sharing

PROFILE = "llama-3.1-70b-4xh100"
BEFORE, WITHOUT_JOINING = "marginal_cost before", "marginal_cost:stream_weight=0"
RULES = [
    BEFORE,
    WITHOUT_JOINING,
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
    """Every running request counts as drawn by the same prefix: the crowd term as it was."""
    kept = Sharing.share
    Sharing.share = lambda sharing, worker, request, blocks: 1.0  # type: ignore[method-assign]
    yield
    Sharing.share = kept  # type: ignore[method-assign]


def figures(workload: str, source: str, rule: str, load: float, seed: int) -> Figures:
    """One cell, played."""
    window_s, block_tokens, rate = WORKLOADS[workload]
    models = replace(Models(), block_tokens=block_tokens, warm_up_s=window_s / 4)
    setting = Setting(Fleet(4, PROFILE), Slo(2_000.0, 100.0), models, window_s, regret=False)
    with all_alike() if rule == BEFORE else nullcontext():
        name = WITHOUT_JOINING if rule == BEFORE else rule
        return play(Cell(source, name, rate * load, seed, setting))[0].all


def contested(workload: str, rule: str, load: float, seed: int) -> Figures:
    """One cell on the tournament's fleet."""
    known = {contest.name: contest for contest in CONTESTS}.get(workload)
    models = Models(block_tokens=known.block_tokens if known else BLOCK_TOKENS, warm_up_s=TOURNAMENT_WINDOW_S / 5)
    fleet, slo = (known.fleet, known.slo) if known else (Fleet(4, PROFILE), SLO)
    setting = Setting(fleet, slo, models, TOURNAMENT_WINDOW_S, regret=False)
    trace = known.trace if known else f"generator:{workload}"
    return play(Cell(trace, rule, TOURNAMENT_RATES[workload] * load, seed, setting))[0].all


def print_contest(workload: str, load: float, rules: list[str], seeds: int) -> None:
    """Means of the first rule, and of the differences to it with their standard errors."""
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
    """One block of lines per workload and load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", help="the Mooncake conversation trace; left out without it")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.6, 0.95])
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rules", nargs="+", default=RULES)
    parser.add_argument("--tournament", action="store_true", help="the tournament's fleets")
    args = parser.parse_args()
    if args.tournament:
        for workload in [name for name in args.only if name in TOURNAMENT_RATES]:
            for load in args.loads:
                print_contest(workload, load, args.rules, args.seeds)
        return
    for workload in args.only:
        source = args.trace if workload == "conversation_trace" else f"generator:{workload}"
        if source is not None:
            for load in args.loads:
                print_cell(workload, source, load, args)


def print_cell(workload: str, source: str, load: float, args: Any) -> None:
    """Means over the seeds."""
    print(f"\n{workload} at {load:g}, {args.seeds} seeds")
    print(f"{'':32}{'TTFT ms':>9}{'p99':>9}{'E2E s':>8}{'TPOT ms':>9}{'goodput':>9}{'cached':>8}", flush=True)
    for rule in args.rules:
        runs = [figures(workload, source, rule, load, seed) for seed in range(args.seeds)]
        mean = {name: fmean(getattr(run, name) for run in runs) for name in SHOWN}
        ttft, p99, e2e, tpot, good, hit = mean.values()
        print(f"{rule:32}{ttft:9.0f}{p99:9.0f}{e2e / 1e3:8.2f}{tpot:9.1f}{good:9.3f}{hit:8.3f}", flush=True)


COMPARED = ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "itl_p99_ms", "e2e_mean_ms", "goodput_share", "hit_share")
SHOWN = ("ttft_mean_ms", "ttft_p99_ms", "e2e_mean_ms", "tpot_mean_ms", "goodput_share", "hit_share")

if __name__ == "__main__":
    main()

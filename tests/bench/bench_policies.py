"""Rules side by side at fixed rates: ``python tests/bench/bench_policies.py [--trace FILE] [--seeds 3]``.

Cells of the policy lab, short ones: four workers of one profile, the last three quarters of each window measured. Rates
are what ``python -m loadtest sim`` found to be about 0.6 and 0.95 of lpwl's saturation over one seed; they are written
down here so that other code meets the same traffic. The first two rows are the default rule before
docs/decisions/0007-crowds-and-steps.md, and with its half: without a price for joining decodes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from loadtest.lab.cell import Cell, Fleet, Setting, Slo
from loadtest.lab.measures import Figures
from loadtest.lab.models import Models
from loadtest.lab.play import play
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


def main() -> None:
    """One block of lines per workload and load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", help="the Mooncake conversation trace; left out without it")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.6, 0.95])
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rules", nargs="+", default=RULES)
    args = parser.parse_args()
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


SHOWN = ("ttft_mean_ms", "ttft_p99_ms", "e2e_mean_ms", "tpot_mean_ms", "goodput_share", "hit_share")

if __name__ == "__main__":
    main()

"""What a KV handover decided by cost brings: ``python -m loadtest.studies.handover --out DIR``.

Four workers serve each workload in virtual time. In the rows with roles, two compute prompts and two write answers, and
the row is the rule for which requests they share. In `cost, four mixed` all do both. In the rows
`turns kept` the decode workers keep each turn for the prefill of the next one. The first rows are the same four workers
without roles. Every row gets the same requests, seed by seed. Load 1.0 is the rate at which the fleet without
roles reaches the TTFT limit under lpwl (90th percentile); the rates are fixed in the source. The output has a table per
workload, and one that compares `cost` with the other rows: the ratio of mean TTFTs (geometric mean) and the difference
of goodput in points, paired by seed, with 95 % t intervals. Finished cells are stored in --out, and not played again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import fmean

from loadtest.arguments import positive
from loadtest.lab.cell import Cell, Fleet, Setting, Slo
from loadtest.lab.measures import Figures
from loadtest.lab.models import Models
from loadtest.lab.run_cell import run_cell
from loadtest.lab.store import Store
from loadtest.report.confidence import Interval, interval, points_text, ratio_text
from loadtest.sim.handover import HandoverSetting

FLEET = Fleet(4, "llama-3.1-70b-4xh100")
ROLES = ("prefill", "prefill", "decode", "decode")
TOKENS_PER_S, LATENCY_S = 150_000.0, 0.005
"""One network card of 400 Gbit/s per worker, at 327,680 bytes of KV cache per token."""
RULE = "marginal_cost"
AGGREGATED, SMALL_CHUNKS, COST, MIXED = "no roles", "no roles, 2,048 tokens per step", "cost", "cost, four mixed"
TURNS = {"cost, turns kept 10 s": 10.0, "cost, turns kept 60 s": 60.0}
"""Rows whose decode workers keep each turn, with the time in seconds."""
ARMS = (AGGREGATED, SMALL_CHUNKS, "never", "always", "above=16", "above=256", "above=2048", MIXED, *TURNS, COST)
"""llm-d's guides set 16 uncached tokens, and vllm-router 256."""
LOADS = (0.3, 0.5, 0.65, 0.8, 0.95)
MARGIN = 3.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests, their service level, the length of a run, and the rate of load 1.0 as a factor on the source's own."""

    trace: str
    slo: Slo
    window_s: float
    block_tokens: int
    rate: float


WORKLOADS = {
    "tight": Workload(
        "generator:no_reuse:rate_per_s=20,prompt_p50_tokens=800,prompt_p90_tokens=2400,"
        "answer_p50_tokens=200,answer_p90_tokens=500",
        Slo(500.0, 25.0),
        30.0,
        128,
        2.11,
    ),
    "pd_1": Workload(
        "generator:no_reuse:rate_per_s=10,prompt_p50_tokens=5000,prompt_p90_tokens=5000,"
        "answer_p50_tokens=250,answer_p90_tokens=250",
        Slo(2_000.0, 30.0),
        60.0,
        128,
        1.01,
    ),
    "agents": Workload("generator:agents:rate_per_s=0.03", Slo(2_000.0, 60.0), 600.0, 256, 0.937),
    "mixed": Workload(
        "generator:documents_beside_chats:rate_per_s=0.9,upload_share=0.2", Slo(2_000.0, 30.0), 300.0, 128, 0.907
    ),
}
"""By name: DistServe's shape, with tight limits; long prompts with short answers; agents that reuse long contexts; and
documents beside chats."""


def cell(name: str, arm: str, load: float, seed: int) -> Cell:
    """Return one run."""
    workload = WORKLOADS[name]
    chunk_tokens = 2_048 if arm == SMALL_CHUNKS else None
    models = replace(
        Models(), block_tokens=workload.block_tokens, warm_up_s=workload.window_s / 4, chunk_tokens=chunk_tokens
    )
    handover = None
    if arm not in (AGGREGATED, SMALL_CHUNKS):
        roles, rule = ("mixed",) * FLEET.workers if arm == MIXED else ROLES, COST if arm in (MIXED, *TURNS) else arm
        lease_s = TURNS.get(arm)
        handover = HandoverSetting(roles, rule, tokens_per_s=TOKENS_PER_S, latency_s=LATENCY_S, turn_lease_s=lease_s)
    setting = Setting(FLEET, workload.slo, models, workload.window_s, regret=False, handover=handover)
    return Cell(workload.trace, RULE, workload.rate * load, seed, setting, load)


class Runs:
    """The figures of every arm, by seed, of one workload at one load."""

    def __init__(self, store: Store, name: str, arms: Sequence[str], load: float, seeds: Sequence[int]) -> None:
        self._figures: dict[str, list[Figures]] = {}
        for arm in arms:
            results = [store.get(cell(name, arm, load, seed)) for seed in seeds]
            self._figures[arm] = [result.measures.all for result in results if result is not None]

    def ttft_ms(self, arm: str) -> float:
        """Return the mean TTFT over the seeds."""
        return fmean(one.ttft_mean_ms for one in self._figures[arm])

    def goodput(self, arm: str) -> float:
        """Return the share of calls that met the service level."""
        return fmean(one.goodput_share for one in self._figures[arm])

    def said(self, arm: str) -> str:
        """Return one place of a table: mean TTFT, goodput, and the share of calls that two workers shared."""
        shared = fmean(one.handed_over_share for one in self._figures[arm])
        share = "" if arm in (AGGREGATED, SMALL_CHUNKS, "never", "always") else f" ({shared:.0%})"
        return f"{self.ttft_ms(arm):,.0f} ms, {self.goodput(arm):.1%}{share}"

    def longer(self, arm: str) -> Interval:
        """Return the logarithm of the mean TTFT of `cost` over that of an arm."""
        return interval([log(ours.ttft_mean_ms / theirs.ttft_mean_ms) for ours, theirs in self._pairs(arm)])

    def better(self, arm: str) -> Interval:
        """Return by how many points the goodput of `cost` is higher than that of an arm."""
        return interval([100.0 * (ours.goodput_share - theirs.goodput_share) for ours, theirs in self._pairs(arm)])

    def verdict(self) -> str:
        """Compare `cost` with the better one of always and never, in either measure."""
        first, most = min(("always", "never"), key=self.ttft_ms), max(("always", "never"), key=self.goodput)
        lost = [f"TTFT of {first}"] * (exp(self.longer(first).mean) > 1.0 + MARGIN / 100.0)
        lost += [f"goodput of {most}"] * (self.better(most).mean < -MARGIN)
        return "behind the " + " and the ".join(lost) if lost else f"within {MARGIN:g} % of the better, or ahead"

    def _pairs(self, arm: str) -> list[tuple[Figures, Figures]]:
        return list(zip(self._figures[COST], self._figures[arm], strict=True))


def print_workload(name: str, arms: Sequence[str], runs: dict[float, Runs]) -> None:
    """Print both tables of a workload, in Markdown."""
    print(f"\n## {name}\n\n| | {' | '.join(f'{load:g}' for load in runs)} |\n|---|{'---|' * len(runs)}")
    for arm in arms:
        print(f"| {arm} | {' | '.join(one.said(arm) for one in runs.values())} |")
    print(f"\n| `cost` against | {' | '.join(f'{load:g}' for load in runs)} |\n|---|{'---|' * len(runs)}")
    for arm in arms[:-1]:
        print(f"| {arm}: TTFT, ratio | {' | '.join(ratio_text(one.longer(arm)) for one in runs.values())} |")
        print(f"| {arm}: goodput, points | {' | '.join(points_text(one.better(arm)) for one in runs.values())} |")
    for load, one in runs.items():
        print(f"\nAt {load:g}: {one.verdict()}.", end="")
    print(flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the missing cells, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the finished cells")
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rows", nargs="+", choices=ARMS, default=ARMS, help="rows beside never, always and cost")
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS))
    parser.add_argument("--seeds", type=positive, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=positive, default=1)
    args = parser.parse_args(arguments)
    if args.seeds < 2:
        parser.error("intervals need --seeds of at least 2")
    arms = [arm for arm in ARMS if arm in args.rows or arm in ("never", "always", COST)]
    store, seeds = Store(args.out), range(args.first_seed, args.first_seed + args.seeds)
    with ProcessPoolExecutor(args.jobs) as pool:
        for name in args.only:
            cells = [cell(name, arm, load, seed) for load, seed, arm in product(args.loads, seeds, arms)]
            missing = [one for one in cells if store.get(one) is None]
            for one, (measures, measured) in zip(missing, pool.map(run_cell, missing), strict=True):
                store.add(one, measures, measured)
            print_workload(name, arms, {load: Runs(store, name, arms, load, seeds) for load in args.loads})


if __name__ == "__main__":
    main()

"""What pulls decided by cost bring: ``python -m loadtest.studies.pulls --out DIR``.

Four workers with host memory serve conversations about long documents in virtual time. The rows are the rule for which
requests pull a prefix from another worker's host memory. Every row gets the same requests, seed by seed. The output has
the mean TTFT of each rule, and its ratio to that without pulls (geometric mean over seeds, with 95 % t intervals). With
--at-once, the 192 conversations all come at the start, and the next one begins when one ends. Finished cells are stored
in --out, and not played again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from math import log
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from loadtest.arguments import positive
from loadtest.lab.cell import Cell, Fleet, Setting, Slo
from loadtest.lab.measures import Figures
from loadtest.lab.models import Models
from loadtest.lab.run_cell import run_cell
from loadtest.lab.store import Store
from loadtest.report.confidence import Interval, interval, ratio_text
from loadtest.sim.pulls import COST, NEVER, PullSetting

FLEET = Fleet(4, "llama-3.1-70b-4xh100")
TRACE = "generator:document_conversations:rate_per_s=1,documents=48"
WINDOW_S, BLOCK_TOKENS = 192.0, 256
HOST_BLOCKS = 4 * 470_000 // 16
"""Four times the GPUs' blocks: 616 GB."""
RULE = "marginal_cost"
THRESHOLD = "above=1024"
ARMS = (NEVER, THRESHOLD, COST)
SPEEDS = (150_000.0, 15_000.0)
"""Network cards of 400 and of 40 Gbit/s per worker, at 327,680 bytes of KV cache per token."""
LOADS = (0.25, 0.5, 1.0)
BURST, BURST_WINDOW_S = 1_000.0, 3_600.0
"""With --at-once: conversations per second, and a time in which all of them end."""


class Arrivals(NamedTuple):
    """Conversations per second, or the number of them `at_once`."""

    load: float
    at_once: int | None = None

    def __str__(self) -> str:
        return f"{self.load:g}" if self.at_once is None else f"{self.at_once} at once"


def cell(arm: str, tokens_per_s: float, arrivals: Arrivals, seed: int) -> Cell:
    """Return one run."""
    load, at_once = arrivals
    models = replace(Models(), block_tokens=BLOCK_TOKENS, warm_up_s=0.0)
    pulls = PullSetting(HOST_BLOCKS, arm, tokens_per_s=tokens_per_s)
    window_s = WINDOW_S if at_once is None else BURST_WINDOW_S
    slo = Slo(10_000.0, 60.0)
    setting = Setting(FLEET, slo, models, window_s, regret=False, pulls=pulls, at_once=at_once)
    return Cell(TRACE, RULE, load, seed, setting, load)


class Runs:
    """The figures of every rule, by seed, of one speed and kind of arrivals."""

    def __init__(self, store: Store, tokens_per_s: float, arrivals: Arrivals, seeds: Sequence[int]) -> None:
        self._figures: dict[str, list[Figures]] = {}
        for arm in ARMS:
            results = [store.get(cell(arm, tokens_per_s, arrivals, seed)) for seed in seeds]
            self._figures[arm] = [result.measures.all for result in results if result is not None]

    def said(self, arm: str) -> str:
        """Return one place of the table: mean TTFT, and its ratio to that without pulls."""
        mean = f"{fmean(one.ttft_mean_ms for one in self._figures[arm]):,.0f} ms"
        return mean if arm == NEVER else f"{mean}, {ratio_text(self.longer(arm, NEVER))}"

    def longer(self, arm: str, base: str) -> Interval:
        """Return the logarithm of the ratio of two mean TTFTs."""
        pairs = zip(self._figures[arm], self._figures[base], strict=True)
        return interval([log(one.ttft_mean_ms / other.ttft_mean_ms) for one, other in pairs])


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the missing cells, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the finished cells")
    parser.add_argument("--speeds", type=float, nargs="+", default=list(SPEEDS), metavar="TOKENS_PER_S")
    parser.add_argument("--loads", type=float, nargs="*", default=list(LOADS), help="conversations per second")
    parser.add_argument("--at-once", type=positive, nargs="*", default=[], help="conversations that are open at once")
    parser.add_argument("--seeds", type=positive, default=5)
    parser.add_argument("--jobs", type=positive, default=1)
    args = parser.parse_args(arguments)
    if args.seeds < 2:
        parser.error("intervals need --seeds of at least 2")
    store, seeds = Store(args.out), range(args.seeds)
    columns = [Arrivals(load) for load in args.loads] + [Arrivals(BURST, at_once) for at_once in args.at_once]
    with ProcessPoolExecutor(args.jobs) as pool:
        for speed in args.speeds:
            cells = [cell(arm, speed, column, seed) for column, seed, arm in product(columns, seeds, ARMS)]
            missing = [one for one in cells if store.get(one) is None]
            for one, (measures, measured) in zip(missing, pool.map(run_cell, missing), strict=True):
                store.add(one, measures, measured)
            runs = [Runs(store, speed, column, seeds) for column in columns]
            print(f"\n## {speed:,.0f} tokens per second\n\n| | {' | '.join(str(column) for column in columns)} |")
            print(f"|---|{'---|' * len(runs)}")
            for arm in ARMS:
                print(f"| {arm} | {' | '.join(one.said(arm) for one in runs)} |", flush=True)
            ratios = [ratio_text(one.longer(COST, THRESHOLD)) for one in runs]
            print(f"| {COST}, beside {THRESHOLD} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main()

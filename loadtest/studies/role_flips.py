"""What automatic changes of roles bring: ``python -m loadtest.studies.role_flips --out DIR``.

Four workers serve requests in virtual time whose mix changes: mostly long prompts at first, then mostly long answers.
Workers keep their roles in the first rows. In the others the gateway's planner changes them, from the split that the
row names, with the gateway's default settings or with shorter times. Every row gets the same requests, seed by seed.
Each place has the mean TTFT, the mean time per token, the share of calls within the limits (goodput), and the mean
number of changes. The second table compares the rows with changes to each fixed split: the ratio of mean TTFTs
(geometric mean) and the difference of goodput in points, paired by seed, with 95 % t intervals. Finished cells are
stored in --out, and not played again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from math import log
from pathlib import Path
from statistics import fmean

from loadtest.arguments import above_zero, positive
from loadtest.lab.cell import Cell, Fleet, Setting, Slo
from loadtest.lab.measures import Measures
from loadtest.lab.models import Models
from loadtest.lab.run_cell import run_cell
from loadtest.lab.store import Store
from loadtest.report.confidence import interval, points_text, ratio_text
from loadtest.sim.handover import HandoverSetting
from router.config.model import HandoverConfig

FLEET = Fleet(4, "qwen3-32b-2xrtxpro6000")
SLO = Slo(4_000.0, 60.0)
RULE = "marginal_cost"
TOKENS_PER_S, LATENCY_S = 150_000.0, 0.005
BLOCK_TOKENS = 128
RATE = 0.2
"""One call per second, as a factor on the source's own rate."""
SOON_S = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    """The number of prefill workers at the start; None: no roles. `flip_after_s` is None if the split is fixed, and
    the planner looks back for `window_s`."""

    prefill: int | None
    flip_after_s: float | None = None
    window_s: float = HandoverConfig().plan_window_s

    @property
    def fixed(self) -> bool:
        """Whether there are roles that stay."""
        return self.prefill is not None and self.flip_after_s is None

    def setting(self) -> HandoverSetting | None:
        """Return the roles and what may change them."""
        if self.prefill is None:
            return None
        roles = ("prefill",) * self.prefill + ("decode",) * (FLEET.workers - self.prefill)
        return HandoverSetting(
            roles,
            tokens_per_s=TOKENS_PER_S,
            latency_s=LATENCY_S,
            flip_after_s=self.flip_after_s,
            plan_window_s=self.window_s,
        )


_USUAL_S = HandoverConfig().flip_after_s
ROWS: Mapping[str, Row] = {
    "no roles": Row(None),
    "1 + 3": Row(1),
    "2 + 2": Row(2),
    "3 + 1": Row(3),
    "from 3 + 1": Row(3, _USUAL_S),
    "from 3 + 1, sooner": Row(3, SOON_S, SOON_S),
}
"""By name: prefill and decode workers, at the start where roles change."""


def cell(row: Row, phase_s: float, window_s: float, seed: int) -> Cell:
    """Return one run. Everything is measured, from the first call on."""
    models = replace(Models(), block_tokens=BLOCK_TOKENS, warm_up_s=0.0)
    setting = Setting(FLEET, SLO, models, window_s, regret=False, handover=row.setting())
    return Cell(f"generator:changing_mix:phase_s={phase_s:g}", RULE, RATE, seed, setting)


class Runs:
    """The measures of every row, by seed, for one length of a phase."""

    def __init__(self, store: Store, phase_s: float, window_s: float, seeds: Sequence[int]) -> None:
        self._measures: dict[str, list[Measures]] = {}
        for name, row in ROWS.items():
            results = [store.get(cell(row, phase_s, window_s, seed)) for seed in seeds]
            self._measures[name] = [result.measures for result in results if result is not None]

    def said(self, name: str) -> str:
        """Return one place of the first table."""
        figures = [one.all for one in self._measures[name]]
        ttft_ms, tpot_ms = fmean(one.ttft_mean_ms for one in figures), fmean(one.tpot_mean_ms for one in figures)
        text = f"{ttft_ms:,.0f} ms, {tpot_ms:.0f} ms, {fmean(one.goodput_share for one in figures):.1%}"
        changes = fmean(one.role_changes for one in self._measures[name])
        return text if ROWS[name].flip_after_s is None else f"{text}, {changes:.1f} changes"

    def compared(self, name: str, other: str) -> str:
        """Return one place of the second table."""
        pairs = list(zip(self._measures[name], self._measures[other], strict=True))
        longer = interval([log(ours.all.ttft_mean_ms / theirs.all.ttft_mean_ms) for ours, theirs in pairs])
        better = interval([100.0 * (ours.all.goodput_share - theirs.all.goodput_share) for ours, theirs in pairs])
        return f"{ratio_text(longer)}; {points_text(better)}"


def print_tables(runs: Mapping[float, Runs]) -> None:
    """Print both tables, in Markdown."""
    head = f" | {' | '.join(f'{phase_s:,.0f} s' for phase_s in runs)} |\n|---|{'---|' * len(runs)}"
    print(f"\n| phases of{head}")
    for name in ROWS:
        print(f"| {name} | {' | '.join(one.said(name) for one in runs.values())} |")
    print(f"\n| phases of{head}")
    moving = [name for name, row in ROWS.items() if row.flip_after_s is not None]
    for name, other in product(moving, [name for name, row in ROWS.items() if row.fixed]):
        print(f"| {name}, against {other} | {' | '.join(one.compared(name, other) for one in runs.values())} |")


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the missing cells, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the finished cells")
    parser.add_argument("--phases", type=above_zero, nargs="+", default=[1_200.0, 400.0], metavar="S")
    parser.add_argument("--window-s", type=above_zero, default=2_400.0, help="length of a run")
    parser.add_argument("--seeds", type=positive, default=3)
    parser.add_argument("--jobs", type=positive, default=1)
    args = parser.parse_args(arguments)
    if args.seeds < 2:
        parser.error("intervals need --seeds of at least 2")
    store, seeds = Store(args.out), range(args.seeds)
    with ProcessPoolExecutor(args.jobs) as pool:
        for phase_s in args.phases:
            cells = [cell(row, phase_s, args.window_s, seed) for seed, row in product(seeds, ROWS.values())]
            missing = [one for one in cells if store.get(one) is None]
            for one, (measures, measured) in zip(missing, pool.map(run_cell, missing), strict=True):
                store.add(one, measures, measured)
    print_tables({phase_s: Runs(store, phase_s, args.window_s, seeds) for phase_s in args.phases})


if __name__ == "__main__":
    main()

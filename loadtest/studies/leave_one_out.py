"""What each part of the default rule gains: ``python -m loadtest.studies.leave_one_out [--traces DIR] [--seeds 10]``.

The default rule and the rule without one part meet the same requests on the tournament's six workloads and on the
held-out ones, at loads 0.6 and 0.95. Windows last 120 to 300 s, of which the first fifth is not measured. Rates are
fixed in the source, so that other code meets the same traffic. Every finished run is one line of JSON in --out, and the
same command resumes. Seeds are played in blocks of five, so that a run that is stopped early can be read: --table
prints what is there.

The tables show what leaving a part out costs: the change of mean TTFT and of the calls per second that meet the service
level, in percent, paired by seed, with 95 % intervals. Positive figures are losses. Part by part the last lines say in
which cells the loss is above 1 % and beyond its interval.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from math import log
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from loadtest.lab.measures import Figures
from loadtest.lab.run_cell import run_cell
from loadtest.lab.store import Store
from loadtest.report.confidence import Interval, interval
from loadtest.studies.short.without import FIRST, VARIANTS, WHOLE, replaceable
from loadtest.studies.short.workloads import LOADS, WORKLOADS

BLOCK = 5
WORTH = 1.0
"""Percent: a smaller loss is not worth a part of the rule."""


class Run(NamedTuple):
    """The key of a run: the part that is left out, workload, load and seed."""

    part: str
    workload: str
    load: float
    seed: int


class Loss(NamedTuple):
    """What a cell loses without a part, in percent: mean TTFT, calls per second within the SLO, and p99 TTFT."""

    ttft: Interval
    goodput: Interval
    p99: Interval

    @property
    def counts(self) -> bool:
        """Whether mean TTFT or goodput loses more than WORTH, beyond the interval."""
        return any(one.mean > WORTH and one.low > 0.0 for one in (self.ttft, self.goodput))

    @property
    def gains(self) -> bool:
        """Whether mean TTFT or goodput is better by more than WORTH without the part, beyond the interval."""
        return any(one.mean < -WORTH and one.high < 0.0 for one in (self.ttft, self.goodput))


Runs = Mapping[Run, Figures]


def order(parts: Sequence[str], workloads: Sequence[str], loads: Sequence[float], seeds: range) -> Iterator[Run]:
    """Yield the runs in the order in which they are played: blocks of seeds, and in each the first suspects first."""
    early = [part for part in parts if part in list(VARIANTS)[:FIRST]]
    late = [part for part in parts if part not in early]
    for begin in range(seeds.start, seeds.stop, BLOCK):
        for group in (early, late):
            for seed in range(begin, min(begin + BLOCK, seeds.stop)):
                yield from (Run(part, name, load, seed) for part in group for load in loads for name in workloads)


class Played:
    """The runs of a folder: one file per part, with a line of JSON per run."""

    def __init__(self, out: Path, traces: Path | None, window_s: float | None) -> None:
        self._out, self._window_s = out, window_s
        self._stores: dict[str, Store] = {}
        found = {one.name: (one, one.source(traces)) for one in WORKLOADS}
        self._sources = {name: (one, source) for name, (one, source) in found.items() if source is not None}

    @property
    def workloads(self) -> list[str]:
        """The workloads whose traces are there."""
        return list(self._sources)

    def figures(self, run: Run, *, play: bool) -> Figures | None:
        """Return the figures of a run; None if it has not been played and `play` is false."""
        variant = VARIANTS[run.part]
        workload, source = self._sources[run.workload]
        cell = workload.cell(source, variant.rule, run.load, run.seed, self._window_s)
        store = self._stores.get(run.part) or self._stores.setdefault(run.part, Store(self._out / _folder(run.part)))
        kept = store.get(cell)
        if kept is None and play:
            with variant.applied():
                kept = store.add(cell, *run_cell(cell))
        return kept.measures.all if kept is not None else None


def _folder(part: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in part)


def losses(runs: Runs, part: str) -> dict[tuple[str, float], Loss]:
    """Return what each cell loses without the part, over the seeds that both have played; at least two."""
    pairs: dict[tuple[str, float], list[tuple[Figures, Figures]]] = {}
    for run, figures in runs.items():
        whole = runs.get(run._replace(part=WHOLE))
        if run.part == part and whole is not None:
            pairs.setdefault((run.workload, run.load), []).append((whole, figures))
    return {cell: compared(found) for cell, found in sorted(pairs.items()) if len(found) > 1}


def compared(pairs: Sequence[tuple[Figures, Figures]]) -> Loss:
    """Return how much worse the second of each pair is, over all pairs."""
    return Loss(*map(interval, zip(*map(worse, pairs), strict=True)))


def worse(pair: tuple[Figures, Figures]) -> tuple[float, float, float]:
    """Return by how many percent the second is worse: mean TTFT, goodput, p99 TTFT.

    Times are compared by logarithms, so that a seed with long waits weighs as much as another one.
    """
    whole, without = pair

    def longer(name: str) -> float:
        return 100.0 * log(getattr(without, name) / getattr(whole, name))

    lost = 100.0 * (whole.goodput_per_s - without.goodput_per_s) / whole.goodput_per_s
    return longer("ttft_mean_ms"), lost, longer("ttft_p99_ms")


def tables(runs: Runs, parts: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the tables in Markdown: a table per part, then one line per part."""
    found = {part: losses(runs, part) for part in parts if part != WHOLE}
    for part, by_cell in found.items():
        seeds = len({run.seed for run in runs if run.part == part})
        yield from ("", f"Without {part}, {seeds} seeds:", "", "| workload | load | mean TTFT | goodput | p99 TTFT |")
        yield "|---|---|---|---|---|"
        for (workload, load), loss in by_cell.items():
            yield f"| {workload} | {load:g} | " + " | ".join(f"{one.mean:+.1f} ±{one.half:.1f}" for one in loss) + " |"
    yield from ("", "| without | mean TTFT | goodput | p99 TTFT | loses in | gains in |", "|---|---|---|---|---|---|")
    yield from (_summary(part, by_cell) for part, by_cell in found.items() if by_cell)


def _summary(part: str, by_cell: Mapping[tuple[str, float], Loss]) -> str:
    means = [f"{fmean(one[place].mean for one in by_cell.values()):+.2f}" for place in range(3)]
    loses = ", ".join(f"{name} {load:g}" for (name, load), loss in by_cell.items() if loss.counts)
    gains = ", ".join(f"{name} {load:g}" for (name, load), loss in by_cell.items() if loss.gains)
    return f"| {part} | " + " | ".join([*means, loses or "no cell", gains or "no cell"]) + " |"


def main(argv: Sequence[str] | None = None) -> None:
    """Play what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="folder with the public traces; without it two workloads miss")
    parser.add_argument("--out", type=Path, default=Path("leave-one-out"), help="folder for results")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS))
    parser.add_argument("--only", nargs="+", choices=[one.name for one in WORKLOADS], metavar="WORKLOAD")
    parser.add_argument("--parts", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="PART")
    parser.add_argument("--window-s", type=float, help="one length for all windows")
    parser.add_argument("--table", action="store_true", help="print what has been played, and play nothing")
    asked = parser.parse_args(argv)
    parts = list(dict.fromkeys([WHOLE, *asked.parts]))
    if not replaceable() and any(VARIANTS[part].patches for part in parts):
        parser.error("terms and ties are left out by replacing Python functions: run from source, not compiled")
    played = Played(asked.out, asked.traces, asked.window_s)
    names = [name for name in played.workloads if asked.only is None or name in asked.only]
    found = {
        run: figures
        for run in order(parts, names, asked.loads, range(asked.first_seed, asked.first_seed + asked.seeds))
        if (figures := played.figures(run, play=not asked.table)) is not None
    }
    print("\n".join(tables(found, parts)))


if __name__ == "__main__":
    main()

"""The bars: the most that a request, a token and a KV event may cost, and what a run says about each."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from loadtest.bench.measures import events, memory, requests, texts
from loadtest.bench.measures.catalogue import FIGURES, STREAMS
from loadtest.bench.proxies.against import ROUTERS
from loadtest.bench.proxies.warmroute import COMPILED, SOURCE
from loadtest.bench.results import Results

FEWEST_ROUNDS = 4
"""The interval of fewer rounds says nothing."""
RESAMPLES = 10_000
CONFIDENCE = 0.95
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bar:
    """The most that a figure of `ours` may be: a ratio to the least figure of `others`, or without them in its unit."""

    figure: str
    ours: str
    most: float
    others: tuple[str, ...] = ROUTERS


BARS = (
    Bar("request-2k", COMPILED, 1.25),
    Bar("request-2k", SOURCE, 3.0),
    *(Bar(figure, COMPILED, 0.9) for figure in STREAMS),
    Bar("next-turn", COMPILED, 1.5, ("sglang-router",)),
    Bar(texts.FIGURE, COMPILED, 1.3, ("sglang-router",)),
    Bar(texts.FIGURE, SOURCE, 2.2, ("sglang-router",)),
    Bar(requests.P50, COMPILED, 0.7, ()),
    Bar(requests.P99, COMPILED, 3.0, ()),
    Bar(memory.IDLE, COMPILED, 1.0),
    Bar(memory.STREAM, COMPILED, 1.0),
    *(Bar(figure, COMPILED, 1.1, ()) for figure in events.RATES),
)


def interval(values: Sequence[T], of: Callable[[Sequence[T]], float]) -> tuple[float, float]:
    """Return the bootstrap interval of the statistic `of`: percentiles over resamples with a fixed seed."""
    rng = random.Random(0)
    found = sorted(of(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    tail = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    return found[tail], found[-1 - tail]


def ratio_of_medians(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the median of the first values over that of the second ones."""
    return statistics.median(one for one, _ in pairs) / statistics.median(other for _, other in pairs)


def rows(results: Results) -> Iterator[list[str]]:
    """Yield the cells of each bar that the run measured: what, of, against, measured, interval, bar and verdict."""
    for bar in (each for each in BARS if each.ours in results.samples.get(each.figure, ())):
        other = _least(results, bar)
        against = (other or "no peer was measured") if bar.others else "-"
        scale = " x" if bar.others else f" {FIGURES[bar.figure].unit}"
        found = _measured(results, bar, other)
        if errors := results.errors(bar.figure, bar.ours):
            measured, spread, verdict = f"{errors} failed", "", "failed"
        elif found is None:
            measured, spread, verdict = "not measured", "", ""
        else:
            value, (low, high), rounds = found
            measured, spread = f"{value:.2f}{scale}", f"{low:.2f} to {high:.2f}"
            verdict = "met" if high <= bar.most else "missed" if low > bar.most else "not decided"
            verdict = verdict if rounds >= FEWEST_ROUNDS else "too few rounds"
        yield [FIGURES[bar.figure].title, bar.ours, against, measured, spread, f"{bar.most:g}{scale}", verdict]


def _least(results: Results, bar: Bar) -> str | None:
    """Return the one of the bar's `others` with the least median, if any was measured without failures."""
    found = {other: results.values(bar.figure, other) for other in bar.others}
    medians = {other: statistics.median(values) for other, values in found.items() if values}
    return min(medians, key=lambda other: medians[other]) if medians else None


def _measured(results: Results, bar: Bar, other: str | None) -> tuple[float, tuple[float, float], int] | None:
    """Return ratio or value, its interval, and the number of rounds that count; None if there is no such round."""
    if bar.others:
        pairs = results.pairs(bar.figure, bar.ours, other) if other is not None else []
        return (ratio_of_medians(pairs), interval(pairs, ratio_of_medians), len(pairs)) if pairs else None
    values = results.values(bar.figure, bar.ours)
    return (statistics.median(values), interval(values, statistics.median), len(values)) if values else None

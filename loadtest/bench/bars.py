"""The bars: the most that a request, a token and a KV event may cost, and what a run says about each."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from loadtest.bench.intervals import interval, ratio_of_medians
from loadtest.bench.measures import events, first_byte, memory
from loadtest.bench.measures.catalogue import FIGURES
from loadtest.bench.proxies.peers import ROUTERS
from loadtest.bench.proxies.warmroute import COMPILED, SOURCE
from loadtest.bench.results import Results

PEERS = tuple(package.distribution for package in ROUTERS)

FEWEST_ROUNDS = 4
"""The interval of fewer rounds says nothing."""


@dataclass(frozen=True, slots=True)
class Bar:
    """The most that a figure of `ours` may be: a ratio to the least figure of `others`, or without them in its unit."""

    figure: str
    ours: str
    most: float
    others: tuple[str, ...] = PEERS


BARS = (
    Bar("request-2k", COMPILED, 1.0),
    Bar("request-2k", SOURCE, 2.0),
    *(Bar(f"tokens-{streams}", COMPILED, 0.9) for streams in (64, 200, 512, 2000)),
    Bar("next-turn", COMPILED, 1.0, ("sglang-router",)),
    Bar(first_byte.P50, COMPILED, 0.5, ()),
    Bar(first_byte.P99, COMPILED, 2.0, ()),
    Bar(memory.IDLE, COMPILED, 1.0),
    Bar(memory.STREAM, COMPILED, 1.0),
    *(Bar(figure, COMPILED, 1.1, ()) for figure in events.RATES),
)


def table(results: Results) -> Iterator[str]:
    """Yield the lines of a table with a row per bar."""
    yield "| what | of | against | measured | 95 % interval | bar | |"
    yield "|---|---|---|---|---|---|---|"
    for bar in BARS:
        title, unit = FIGURES[bar.figure].title, FIGURES[bar.figure].unit
        other = _least(results, bar)
        against, scale = (other or "no peer was measured", " x") if bar.others else ("-", f" {unit}")
        if errors := results.errors(bar.figure, bar.ours):
            yield f"| {title} | {bar.ours} | {against} | {errors} failed | | {bar.most:g}{scale} | failed |"
            continue
        measured = _measured(results, bar, other)
        if measured is None:
            yield f"| {title} | {bar.ours} | {against} | not measured | | {bar.most:g}{scale} | |"
            continue
        value, (low, high), rounds = measured
        verdict = "met" if high <= bar.most else "missed" if low > bar.most else "not decided"
        if rounds < FEWEST_ROUNDS:
            verdict = "too few rounds"
        spread = f"{low:.2f} to {high:.2f}"
        yield f"| {title} | {bar.ours} | {against} | {value:.2f}{scale} | {spread} | {bar.most:g}{scale} | {verdict} |"


def most_rounds(results: Results) -> int:
    """Return the number of rounds that count for the bar that has the most of them."""
    found = (_measured(results, bar, _least(results, bar)) for bar in BARS)
    return max((measured[2] for measured in found if measured is not None), default=0)


def _least(results: Results, bar: Bar) -> str | None:
    """Return the one of the bar's `others` with the least median, if any was measured without failures."""
    found = {other: results.absolute(bar.figure, other) for other in bar.others}
    medians = {other: spread.median for other, spread in found.items() if spread is not None}
    return min(medians, key=lambda other: medians[other]) if medians else None


def _measured(results: Results, bar: Bar, other: str | None) -> tuple[float, tuple[float, float], int] | None:
    """Return ratio or value, its interval, and the number of rounds that count; None if there is no such round."""
    if bar.others:
        pairs = results.pairs(bar.figure, bar.ours, other) if other is not None else []
        return (ratio_of_medians(pairs), interval(pairs, ratio_of_medians), len(pairs)) if pairs else None
    values = results.values(bar.figure, bar.ours)
    return (statistics.median(values), interval(values, statistics.median), len(values)) if values else None

"""The steady window of a run, whether the run is saturated, and whether the client was fast enough to be believed.

Latency above capacity depends on how long the run was, so its percentiles describe no steady state. Requests that pile
up show it: their number in flight, and with it TTFT, grows with time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, linear_regression

from loadtest.load.records import Record
from loadtest.load.tally import Ordered
from loadtest.report.verdict import Z_95

BINS = 12
LEAST_PILED = 0.03
"""A smaller share of the arrivals that stays in flight is no overload: it is the noise of a run of a minute."""
LEAST_REQUESTS = 60
MOST_LAG = 0.01


@dataclass(frozen=True, slots=True)
class Slope:
    """A least-squares slope per second, and the lower end of its 95 % interval."""

    per_s: float
    low_per_s: float


@dataclass(frozen=True, slots=True)
class Saturated:
    """`piled_share` is the share of the arrivals that stays in flight; `ttft` is the slope of TTFT."""

    piled_share: float
    ttft: Slope


def saturation_of(records: Sequence[Record]) -> Saturated | None:
    """Return how an open loop piles up; None if it keeps up, or is too short to say. `records` are by intended time.

    The first `BINS + 1`-th of the window fills the fleet, also below capacity, and does not count.
    """
    if len(records) < LEAST_REQUESTS:
        return None
    first_s, last_s = records[0].intended_s, records[-1].intended_s
    width_s = (last_s - first_s) / (BINS + 1)
    typical_s = Ordered(sorted(one.e2el_s for one in records[: len(records) // 4])).at(0.5)
    if width_s <= 0.0 or typical_s > 2.0 * width_s:
        # Nothing has left before half of the window is over: only a longer run can tell growth from filling.
        return None
    edges_s = [first_s + width_s * (place + 1) for place in range(BINS + 1)]
    flying = in_flight(records, edges_s[1:])
    ttfts_s = [
        fmean(found) if (found := [_ttft_s(one) for one in records if low <= one.intended_s < high]) else 0.0
        for low, high in itertools.pairwise(edges_s)
    ]
    flight, ttft = slope(edges_s[1:], flying), slope(edges_s[1:], ttfts_s)
    piled = flight.per_s * (last_s - first_s) / len(records)
    grows = flight.low_per_s > 0.0 and ttft.low_per_s > 0.0 and piled > LEAST_PILED
    return Saturated(piled, ttft) if grows else None


def in_flight(records: Sequence[Record], times_s: Sequence[float]) -> list[int]:
    return [sum(one.intended_s <= at_s < one.ended_s for one in records) for at_s in times_s]


def _ttft_s(one: Record) -> float:
    return one.e2el_s if one.ttft_s is None else one.ttft_s


def slope(xs: Sequence[float], ys: Sequence[float]) -> Slope:
    """Return the slope of `BINS` points or more."""
    per_s, start = linear_regression(xs, ys)
    middle = fmean(xs)
    rest = sum((y - start - per_s * x) ** 2 for x, y in zip(xs, ys, strict=True)) / (len(xs) - 2)
    error = (rest / sum((x - middle) ** 2 for x in xs)) ** 0.5
    return Slope(per_s, per_s - t_975(len(xs) - 2) * error)


def t_975(freedom: int) -> float:
    """Return Student's t at 97.5 % for 10 degrees of freedom or more, within 0.01 %.

    Source: Abramowitz and Stegun, 26.7.5.
    """
    z: float = Z_95
    terms: tuple[float, ...] = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum([term / float(freedom**power) for power, term in enumerate(terms, 1)])


def lag_problem(lags_s: Sequence[float], records: Sequence[Record]) -> str:
    """Return why the client was too slow for the run to count, or "".

    The run is void where the client's own lateness is above 1 % of TTFT, at the median or at the 99th percentile.
    """
    lags = Ordered(sorted([*lags_s, *(one.lag_s for one in records)]))
    ttfts = Ordered(sorted(one.ttft_s for one in records if one.ttft_s is not None))
    if not lags.values or not ttfts.values:
        return ""
    for share in (0.5, 0.99):
        if lags.at(share) > MOST_LAG * ttfts.at(share):
            return (
                f"p{share * 100:g} of the client's own lag is {lags.at(share) * 1e3:.2f} ms, above"
                f" {MOST_LAG:.0%} of TTFT ({ttfts.at(share) * 1e3:.0f} ms): take more --processes or a lower load"
            )
    return ""

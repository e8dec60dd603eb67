"""Counts by bucket, and their quantiles."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise

PROMPT_TOKENS = (256, 1_024, 4_096, 8_192, 16_384, 32_768, 65_536)
OUTPUT_TOKENS = (16, 64, 256, 1_024, 4_096, 16_384)


def empty(bounds: Sequence[float]) -> list[int]:
    """Return counts of zero: one for each bucket that ends at a bound, and one for values above all bounds."""
    return [0] * (len(bounds) + 1)


def count(counts: list[int], bounds: Sequence[float], value: float) -> None:
    counts[bisect_left(bounds, value)] += 1


def total(many: Iterable[Sequence[int]], bounds: Sequence[float]) -> list[int]:
    """Return the sums of several histograms with the same bounds."""
    return list(map(sum, zip(*many, strict=True))) or empty(bounds)


def quantile(counts: Sequence[int], bounds: Sequence[float], share: float) -> float | None:
    """Return the value below which `share` of the observations lie; None without observations.

    Within a bucket values count as evenly spread. Those above all bounds count as the last bound.
    """
    wanted, seen = share * sum(counts), 0
    if not wanted:
        return None
    for place, number in enumerate(counts[:-1]):
        if number and seen + number >= wanted:
            low = bounds[place - 1] if place else 0.0
            return low + (bounds[place] - low) * (wanted - seen) / number
        seen += number
    return float(bounds[-1])


def named_buckets(bounds: Sequence[int]) -> list[str]:
    between = [f"{low + 1:,} to {high:,}" for low, high in pairwise(bounds)]
    return [f"up to {bounds[0]:,}", *between, f"over {bounds[-1]:,}"]

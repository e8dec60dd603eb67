"""Bootstrap intervals: percentiles over resamples with a fixed seed."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from typing import TypeVar

RESAMPLES = 10_000
CONFIDENCE = 0.95
T = TypeVar("T")


def interval(values: Sequence[T], of: Callable[[Sequence[T]], float]) -> tuple[float, float]:
    """Return the interval of the statistic `of` over `values`."""
    rng = random.Random(0)
    found = sorted(of(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    tail = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    return found[tail], found[-1 - tail]


def ratio_of_medians(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the median of the first values over that of the second ones."""
    return statistics.median(one for one, _ in pairs) / statistics.median(other for _, other in pairs)

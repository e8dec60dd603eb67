"""Means with their 95 % confidence intervals, over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, sqrt
from statistics import fmean, stdev

from scipy.special import stdtrit


@dataclass(frozen=True, slots=True)
class Interval:
    """`mean` plus or minus `half`; `half` is NaN if there was only one value."""

    mean: float
    half: float


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of `values` and its 95 % interval."""
    return Interval(fmean(values), half_width(values) if len(values) > 1 else nan)


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the mean's 95 % interval, by Student's t for draws from a normal distribution.

    Raises:
        StatisticsError: there are fewer than two values.
    """
    count = len(values)
    return float(-stdtrit(count - 1, 0.025)) * stdev(values) / sqrt(count)

"""Means with their 95 % confidence intervals, over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, sqrt
from statistics import fmean, stdev

from loadtest.report.student import point


@dataclass(frozen=True, slots=True)
class Interval:
    """`mean` plus or minus `half`; `half` is NaN where there was one value only."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        """Its lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Its upper end."""
        return self.mean + self.half


def interval(values: Sequence[float]) -> Interval:
    """The mean of `values`, taken as draws from one normal distribution (Student's t)."""
    count = len(values)
    if count < 2:
        return Interval(fmean(values), nan)
    return Interval(fmean(values), point(0.025, count - 1) * stdev(values) / sqrt(count))

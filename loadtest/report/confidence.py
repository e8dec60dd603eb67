"""Means with their 95 % confidence intervals, over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, sqrt
from statistics import fmean, stdev

_STUDENT_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Two-sided 95 % points for 1, 2, ... degrees of freedom."""


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
    """The mean of `values`, taken as draws from one normal distribution (Student's t; 2.0 beyond 16 of them)."""
    count = len(values)
    if count < 2:
        return Interval(fmean(values), nan)
    t = _STUDENT_T[count - 2] if count - 2 < len(_STUDENT_T) else 2.0
    return Interval(fmean(values), t * stdev(values) / sqrt(count))

"""Means with their 95 % confidence intervals, over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, nan, sqrt
from statistics import fmean, stdev

from scipy.special import stdtrit


@dataclass(frozen=True, slots=True)
class Interval:
    """`mean` plus or minus `half`; `half` is NaN if there was only one value."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + self.half


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of `values` and its 95 % interval."""
    return Interval(fmean(values), half_width(values) if len(values) > 1 else nan)


def ratio_text(found: Interval) -> str:
    """Format a ratio with its interval, from their logarithms. It is bold if the interval leaves out 1."""
    return f"{_bold(f'{exp(found.mean):.2f}', found)} ({exp(found.low):.2f} to {exp(found.high):.2f})"


def points_text(found: Interval) -> str:
    """Format a difference in points with its interval. It is bold if the interval leaves out 0."""
    return f"{_bold(f'{found.mean:+.1f}', found)} ± {found.half:.1f}"


def _bold(text: str, found: Interval) -> str:
    return f"**{text}**" if abs(found.mean) > found.half else text


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the mean's 95 % interval, by Student's t for draws from a normal distribution.

    Raises:
        StatisticsError: there are fewer than two values.
    """
    count = len(values)
    return float(-stdtrit(count - 1, 0.025)) * stdev(values) / sqrt(count)

"""Draws from a seed: one stream of random numbers per purpose, so that more draws of one leave the others unchanged.

For a trace, a seed varies where in it the run begins, and where within their tick rows arrive. For a generator, it
varies everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from math import exp, log
from random import Random

from loadtest.workload.text import Piece

NORMAL_P90 = 1.2815515655446004
"""The 90th percentile of a standard normal variable."""

LONGEST = 10.0
"""Lengths are cut at this multiple of their 90th percentile; else one prompt in a long run would fit into no model."""

FIRST_FRESH_ID = 1 << 62
"""First id of text that a source does not name; the ids of traces are lower."""


def stream(seed: int, purpose: str) -> Random:
    """Return random numbers for one purpose. Equal arguments give equal numbers, on every machine."""
    return Random(f"{seed}: {purpose}")


class Draws:
    """A generator's random source: lengths, times, and text that occurs nowhere else."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self._ids: Iterator[int] = count(FIRST_FRESH_ID)

    def piece(self, tokens: int) -> Piece:
        return next(self._ids), tokens

    def around(self, p50: float, p90: float) -> float:
        """Draw from a log-normal distribution with this median and 90th percentile, cut at `LONGEST` times p90."""
        return min(LONGEST * p90, p50 * exp(self.rng.gauss(0.0, 1.0) * log(p90 / p50) / NORMAL_P90))

    def tokens(self, p50: int, p90: int) -> int:
        """Draw as `around` does, and return a number of tokens, at least one."""
        return max(1, round(self.around(p50, p90)))

    def between(self, low: int, high: int) -> int:
        """Draw a number from `low` to `high`, both included, each with equal probability."""
        return self.rng.randint(low, high)

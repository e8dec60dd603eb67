"""Draws from a seed: one stream of random numbers for each purpose, so that more of one leaves the others as they were.

Of a trace a seed varies where in it the run begins and where within their tick rows arrive; of a generator everything.
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
"""Without a limit, one prompt in a long run would fit into no model."""

FIRST_FRESH_ID = 1 << 62
"""Ids from here on are for text that a source does not name; traces' own ids lie below."""


def stream(seed: int, purpose: str) -> Random:
    """Random numbers for one purpose. Equal arguments give equal numbers, on every machine."""
    return Random(f"{seed}: {purpose}")


class Draws:
    """A generator's random source: lengths, times, and text that occurs nowhere else."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self._ids: Iterator[int] = count(FIRST_FRESH_ID)

    def piece(self, tokens: int) -> Piece:
        """Return new text of `tokens` tokens."""
        return next(self._ids), tokens

    def around(self, p50: float, p90: float) -> float:
        """Log-normal, given its median and 90th percentile, and cut at `LONGEST` times the latter."""
        return min(LONGEST * p90, p50 * exp(self.rng.gauss(0.0, 1.0) * log(p90 / p50) / NORMAL_P90))

    def tokens(self, p50: int, p90: int) -> int:
        """The same as a number of tokens, at least one."""
        return max(1, round(self.around(p50, p90)))

    def between(self, low: int, high: int) -> int:
        """Each number from `low` to `high`, both included, as likely as the others."""
        return self.rng.randint(low, high)

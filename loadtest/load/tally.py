"""Numbers of many records: percentiles with their counts and intervals, errors, tokens and goodput.

Memory is bounded: a measure keeps all its values up to `KEPT`, and from then on a uniform sample of them.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor, nan, sqrt
from operator import mul
from random import Random

from loadtest.load.records import MEASURES, Goals, Record, meets
from loadtest.report.summary import percentile
from loadtest.report.verdict import Z_95

KEPT = 500_000
OTHER, MOST_GROUPS = "other", 32


class Sample:
    """The values of one measure. `count`, `mean` and `std` are of all of them."""

    def __init__(self, seed: int = 0) -> None:
        self.count = 0
        self._sum = self._squares = 0.0
        self._values = array("d")
        self._rng = Random(seed)

    def extend(self, values: Sequence[float]) -> None:
        self._sum += sum(values)
        self._squares += sum(map(mul, values, values))
        place = KEPT - len(self._values)
        self._values.extend(values[:place])
        self.count += len(values[:place])
        for value in values[place:]:
            self.count += 1
            if (place := self._rng.randrange(self.count)) < KEPT:
                self._values[place] = value

    @property
    def mean(self) -> float:
        return self._sum / self.count if self.count else nan

    @property
    def std(self) -> float:
        return sqrt(max(0.0, self._squares / self.count - self.mean**2)) if self.count else nan

    def ordered(self) -> Ordered:
        return Ordered(sorted(self._values))


@dataclass(frozen=True, slots=True)
class Ordered:
    """Values in order. `at` takes a share, 0.99 for p99, and interpolates as numpy does; NaN for no values."""

    values: list[float]

    def at(self, share: float) -> float:
        return percentile(self.values, share) if self.values else nan

    def interval(self, share: float) -> tuple[float, float] | None:
        """Return the 95 % interval of a percentile by order statistics; None if there are too few values for it."""
        count = len(self.values)
        half = Z_95 * sqrt(count * share * (1.0 - share))
        low, high = floor(count * share - half), floor(count * share + half) + 1
        return (self.values[low], self.values[high]) if low >= 0 and high < count else None


@dataclass(slots=True)
class Tally:
    """Counts and samples of records. Failed requests count in `total`, `errors` and goodput, and in no percentile."""

    goals: Goals = field(default_factory=dict)
    total: int = 0
    met: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    samples: dict[str, Sample] = field(default_factory=lambda: {name: Sample() for name in MEASURES})
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_tokens_with_cached: int = 0
    completion_tokens: int = 0
    uncounted: int = 0
    capped: int = 0

    def add(self, one: Record) -> None:
        self.total += 1
        self.capped += one.waited_s > 0.0
        if not one.good:
            error = one.error[:120]
            self.errors[error if error in self.errors or len(self.errors) < MOST_GROUPS else OTHER] += 1
            return
        values_s = one.values_s
        self.met += meets(values_s, self.goals)
        for name, values in values_s.items():
            self.samples[name].extend(values)
        self.prompt_tokens += one.prompt_tokens
        self.completion_tokens += one.completion_tokens
        self.uncounted += not one.counted
        if one.cached_tokens is not None:
            self.cached_tokens += one.cached_tokens
            self.prompt_tokens_with_cached += one.prompt_tokens

    @property
    def completed(self) -> int:
        return self.total - self.failed

    @property
    def failed(self) -> int:
        return self.errors.total()

    @property
    def cached_share(self) -> float | None:
        """Cached tokens per prompt token, of the answers that report it; None if none does."""
        return self.cached_tokens / self.prompt_tokens_with_cached if self.prompt_tokens_with_cached else None


def group(groups: dict[str, Tally], one: Record, goals: Goals) -> None:
    """Add a record to the tally of its class and to that of its turn; beyond `MOST_GROUPS` there is one of the rest."""
    for name in (f"class {one.kind}", f"turn {one.turn}"):
        known = name if name in groups or len(groups) < MOST_GROUPS else OTHER
        groups.setdefault(known, Tally(goals)).add(one)

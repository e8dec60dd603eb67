"""Compare the order of rules on two sides, as far as the seeds allow.

Within one seed, every rule plays the same workload, so the values of two rules can be paired. A side orders two rules
if the 95 % interval of their difference excludes 0; otherwise they are level there. The difference is taken seed by
seed, relative to the mean of the two rules in that seed, because some seeds are much busier than others and would
decide alone. Only the opposite order on the other side contradicts an order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import fmean

from loadtest.report.confidence import interval

Values = Mapping[str, Sequence[float]]
"""One value per seed, the same seeds in the same order for every rule."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two rules. On either side: 1 if `first` is better, -1 if `second` is better, 0 if they are level."""

    first: str
    second: str
    live: int
    modelled: int


@dataclass(frozen=True, slots=True)
class Ordering:
    """One measure: every pair of rules, and each side's order in words, best first."""

    measure: str
    pairs: tuple[Pair, ...]
    live: str
    modelled: str

    @property
    def same(self) -> int:
        """Number of pairs that both sides order alike."""
        return sum(pair.live * pair.modelled > 0 for pair in self.pairs)

    @property
    def inverted(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.live * pair.modelled < 0]


def ordering(measure: str, live: Values, modelled: Values, *, higher_is_better: bool) -> Ordering:
    sign = 1.0 if higher_is_better else -1.0
    pairs = tuple(
        Pair(first, second, _better(live, first, second, sign), _better(modelled, first, second, sign))
        for first, second in combinations(live, 2)
    )
    return Ordering(measure, pairs, _in_words(live, sign), _in_words(modelled, sign))


def _better(values: Values, first: str, second: str, sign: float) -> int:
    by = interval([sign * _apart(one, other) for one, other in zip(values[first], values[second], strict=True)])
    return int(by.low > 0.0) - int(by.high < 0.0)


def _apart(one: float, other: float) -> float:
    """Return the difference in units of their mean, from -2 to 2."""
    return 2.0 * (one - other) / ((one + other) or 1.0)


def _in_words(values: Values, sign: float) -> str:
    """Return the rules by mean, best first, with `>` between neighbours that differ and `~` between level ones."""
    ranked = sorted(values, key=lambda rule: -sign * fmean(values[rule]))
    signs = [" > " if _better(values, first, second, sign) else " ~ " for first, second in pairwise(ranked)]
    return "".join(word for both in zip(ranked, [*signs, ""], strict=True) for word in both)

"""Whether enough requests meet a goal: MLPerf's early stopping, and Wilson's interval of a share.

With t late requests a goal of share p is met once n(t) requests have ended: the smallest n for which a system that
meets the goal for a share of exactly p would show at most t late ones with a probability of 1 %. The goal is missed if
a system at p would show as many late ones as seen with that probability. Everything between is undecided.

Source: mlcommons/inference_policies, inference_rules.adoc, "Early stopping", with d = 0 and c = 0.99.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import exp, lgamma, log, log1p, sqrt
from statistics import NormalDist

CONFIDENCE = 0.99
Z_95 = NormalDist().inv_cdf(0.975)
"""Half a 95 % interval in standard deviations."""


class Answer(IntEnum):
    """A verdict, as the exit code of a command; 3 is left for wrong input."""

    MET = 0
    NOT_MET = 1
    UNDECIDED = 2

    @property
    def words(self) -> str:
        return ("met", "not met", "not decided")[self]


@dataclass(frozen=True, slots=True)
class GoalVerdict:
    """The answer for `late` of `total` requests. `needed` is n(late): the total at which this many are few enough."""

    answer: Answer
    late: int
    total: int
    needed: int

    @property
    def missing(self) -> int:
        """Further requests, none of them late, that would meet the goal."""
        return max(0, self.needed - self.total)


def verdict(late: int, total: int, share: float) -> GoalVerdict:
    """Judge a goal that a `share` of the requests is to meet."""
    needed = needed_total(late, share)
    if total >= needed:
        answer = Answer.MET
    elif _tail(late, total, share) <= 1.0 - CONFIDENCE:
        answer = Answer.NOT_MET
    else:
        answer = Answer.UNDECIDED
    return GoalVerdict(answer, late, total, needed)


def needed_total(late: int, share: float) -> int:
    """Return n(t): the smallest n with P[Binomial(n, 1 - share) <= late] <= 1 - `CONFIDENCE`.

    Raises:
        ValueError: `share` is not between 0 and 1.
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"a share lies between 0 and 1, not at {share:g}")
    low, high = late, max(2 * late, 16)
    while at_most(late, high, 1.0 - share) > 1.0 - CONFIDENCE:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at_most(late, middle, 1.0 - share) <= 1.0 - CONFIDENCE else (middle, high)
    return high


def at_most(late: int, total: int, probability: float) -> float:
    """Return P[Binomial(total, probability) <= late]."""
    if late >= total:
        return 1.0
    yes, no, whole = log(probability), log1p(-probability), lgamma(total + 1)
    terms = [
        whole - lgamma(count + 1) - lgamma(total - count + 1) + count * yes + (total - count) * no
        for count in range(late + 1)
    ]
    largest = max(terms)  # so that the largest term is no underflow
    return min(1.0, exp(largest) * sum(exp(term - largest) for term in terms))


def _tail(late: int, total: int, share: float) -> float:
    """Return the probability of `late` or more late requests if exactly `share` of all meet the goal."""
    return 1.0 - at_most(late - 1, total, 1.0 - share) if late else 1.0


@dataclass(frozen=True, slots=True)
class ShareInterval:
    """A share with its 95 % interval."""

    share: float
    low: float
    high: float

    def side(self, target: float) -> bool | None:
        """Return whether the true share is above `target`; None while the interval contains it."""
        return True if self.low >= target else False if self.high < target else None


def wilson(good: int, total: int) -> ShareInterval:
    """Return the share of `good` in `total` with Wilson's score interval; 0 to 1 for no requests."""
    if not total:
        return ShareInterval(0.0, 0.0, 1.0)
    z, share = Z_95, good / total
    scale = 1.0 + z * z / total
    centre = (share + z * z / (2.0 * total)) / scale
    half = z * sqrt(share * (1.0 - share) / total + z * z / (4.0 * total * total)) / scale
    return ShareInterval(share, max(0.0, centre - half), min(1.0, centre + half))

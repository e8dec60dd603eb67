"""Rules side by side: means over seeds, and a test of each rule against the best one.

Seeds pair: with one seed every rule receives the same requests for the same workers. So rules are compared by the
difference per seed, relative to the best rule's mean. The best rule is the one with the best mean. Each other rule is

- *not inferior* if it can be ruled out (one-sided paired t test at 5 %) that its mean is more than 2 % worse;
- *worse* if its mean is significantly worse (one-sided paired t test at 5 %).

Both are corrected by Holm's method for the number of rules compared with the best one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from scipy.special import stdtr

from loadtest.report.confidence import half_width

MARGIN = 0.02
LEVEL = 0.05
READING = (
    "mean over seeds, plus or minus half the width of its 95 % interval (Student's t); * best, = not inferior to it: a"
    f" mean more than {MARGIN:.0%} worse is ruled out at 5 %, - worse at 5 % (both by paired t tests over the seeds,"
    " Holm-corrected for the rules compared), no mark: undecided"
)
"""What figures and marks mean, on every page."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One rule in one measure. `half` is the half width of the mean's 95 % interval, None with one seed.

    `difference` is how much worse the rule is than the best one, relative to the best mean. `difference_half` is the
    half width of its paired 95 % interval. They are 0 and None for the best rule. With one seed nothing is tested.
    """

    policy: str
    mean: float
    half: float | None
    difference: float
    difference_half: float | None
    best: bool = False
    not_inferior: bool | None = None
    worse: bool | None = None

    @property
    def mark(self) -> str:
        return "*" if self.best else "=" if self.not_inferior else "-" if self.worse else ""

    def figure(self, form: str) -> str:
        """Format the mean with its interval and its mark."""
        half = "" if self.half is None else f" ±{self.half:{form}}"
        return f"{self.mean:{form}}{half} {self.mark}".rstrip()


def standings(values: Mapping[str, Sequence[float]], *, higher_is_better: bool) -> list[Standing]:
    """Compare the rules, in the order of `values`: one value per seed, the same seeds for all."""
    means = {policy: fmean(found) for policy, found in values.items()}
    sign = 1.0 if higher_is_better else -1.0
    best = max(means, key=lambda policy: sign * means[policy])
    scale = abs(means[best]) or 1.0
    worse_by = {
        policy: [sign * (ours - theirs) / scale for ours, theirs in zip(values[best], found, strict=True)]
        for policy, found in values.items()
        if policy != best
    }
    not_inferior = holm({policy: _chance(differences, MARGIN) for policy, differences in worse_by.items()})
    worse = holm({policy: _chance([-one for one in differences]) for policy, differences in worse_by.items()})
    return [
        Standing(policy, means[policy], _half(found), 0.0, None, best=True)
        if policy == best
        else Standing(
            policy,
            means[policy],
            _half(found),
            fmean(worse_by[policy]),
            _half(worse_by[policy]),
            not_inferior=not_inferior[policy],
            worse=worse[policy],
        )
        for policy, found in values.items()
    ]


def holm(chances: Mapping[str, float | None]) -> dict[str, bool | None]:
    """Return which hypotheses are rejected, by Holm's step-down; None for those that could not be tested.

    The smallest p is compared with LEVEL / m, the next with LEVEL / (m - 1), and so on until a hypothesis stands.
    """
    falls: dict[str, bool | None] = dict.fromkeys(chances)
    tested = sorted((chance, name) for name, chance in chances.items() if chance is not None)
    standing = False
    for place, (chance, name) in enumerate(tested):
        standing = standing or chance > LEVEL / (len(tested) - place)
        falls[name] = not standing
    return falls


def _chance(differences: Sequence[float], margin: float = 0.0) -> float | None:
    """Return the p value of "the mean is at least `margin`" against "it is less"; None with fewer than two values."""
    if len(differences) < 2:
        return None
    gap = margin - fmean(differences)
    error = stdev(differences) / sqrt(len(differences))
    if not error:
        return 0.0 if gap > 0 else 1.0
    return float(stdtr(len(differences) - 1, -gap / error))


def _half(values: Sequence[float]) -> float | None:
    """Return half the width of the mean's 95 % interval, None with fewer than two values."""
    return half_width(values) if len(values) > 1 else None

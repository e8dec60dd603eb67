"""The ranking per workload, load and measure, and the matches that the judged rule loses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtest.lab.comparison import Standing
from loadtest.lab.findings import Measure
from loadtest.tournament.scores import RANKED, Scores, Workload

SATURATED = 1.0
"""The judged rule must lose no match at a load below this one."""
HEAVY = 0.05
"""The judged rule must lose no match by more than this share, at any load."""


@dataclass(frozen=True, slots=True)
class Match:
    """All rules in one measure of one workload at one load, best mean first."""

    workload: Workload
    load: float
    measure: Measure
    standings: Sequence[Standing]

    @property
    def first(self) -> Standing:
        """The rule with the best mean."""
        return next(one for one in self.standings if one.best)

    def of(self, policy: str) -> Standing:
        return next(one for one in self.standings if one.policy == policy)


@dataclass(frozen=True, slots=True)
class Loss:
    """A match in which the judged rule is neither first nor shown to be not inferior to the first."""

    match: Match
    ours: Standing

    @property
    def heavy(self) -> bool:
        """Whether the rule's mean is worse than the best by more than `HEAVY`."""
        return self.ours.difference > HEAVY

    @property
    def why(self) -> str:
        """What the seeds say about the loss, in words."""
        if self.ours.not_inferior is None:
            return "one seed decides nothing"
        return "worse" if self.ours.worse else "undecided, and not shown to be within 2 %"


def matches(
    scores: Scores, workloads: Sequence[Workload] | None = None, measures: Sequence[Measure] = RANKED
) -> Iterator[Match]:
    for workload in scores.workloads if workloads is None else workloads:
        for load in scores.loads:
            for measure in measures:
                yield Match(workload, load, measure, workload.standings(measure, load, scores.policies))


def holds(standing: Standing) -> bool:
    """Whether the rule is first, or not inferior to the first."""
    return standing.best or bool(standing.not_inferior)


def losses(scores: Scores) -> list[Loss]:
    """Return the matches that the judged rule loses, the worst first."""
    found = [Loss(match, ours) for match in matches(scores) if not holds(ours := match.of(scores.judged))]
    return sorted(found, key=lambda loss: -loss.ours.difference)

"""The ranking per workload, load and measure, and the matches that the judged rule loses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtest.lab.comparison import Standing
from loadtest.lab.findings import Measure
from loadtest.tournament.scores import RANKED, Scores, Workload

SATURATED = 1.0
"""Loads below this one are those at which a rule has to hold its own."""
HEAVY = 0.05
"""No cell may be lost by more, saturated or not."""


@dataclass(frozen=True, slots=True)
class Match:
    """All rules in one measure of one workload at one load, best mean first."""

    workload: Workload
    load: float
    measure: Measure
    standings: Sequence[Standing]

    @property
    def first(self) -> Standing:
        """The best mean."""
        return next(one for one in self.standings if one.best)

    def of(self, policy: str) -> Standing:
        """One rule's."""
        return next(one for one in self.standings if one.policy == policy)


@dataclass(frozen=True, slots=True)
class Loss:
    """A match in which the judged rule is neither first nor shown to be not inferior to the first."""

    match: Match
    ours: Standing

    @property
    def heavy(self) -> bool:
        """Whether its mean is worse than the best by more than may be."""
        return self.ours.difference > HEAVY

    @property
    def why(self) -> str:
        """The verdict of the seeds."""
        if self.ours.not_inferior is None:
            return "one seed decides nothing"
        return "worse" if self.ours.worse else "undecided, and not shown to be within 2 %"


def matches(
    scores: Scores, workloads: Sequence[Workload] | None = None, measures: Sequence[Measure] = RANKED
) -> Iterator[Match]:
    """Every one, by workload, load and measure."""
    for workload in scores.workloads if workloads is None else workloads:
        for load in scores.loads:
            for measure in measures:
                yield Match(workload, load, measure, workload.standings(measure, load, scores.policies))


def holds(standing: Standing) -> bool:
    """First, or not inferior to the first."""
    return standing.best or bool(standing.not_inferior)


def losses(scores: Scores) -> list[Loss]:
    """The judged rule's, the worst first."""
    found = [Loss(match, ours) for match in matches(scores) if not holds(ours := match.of(scores.judged))]
    return sorted(found, key=lambda loss: -loss.ours.difference)

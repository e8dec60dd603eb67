"""The ranking per workload, load and measure; of all together: goodput and sustained load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

from loadtest.lab.comparison import Standing, standings
from loadtest.lab.measures import Measure
from loadtest.tournament.scores import RANKED, Scores, Workload

SATURATED = 1.0
"""The judged rule must lose no match at a load below this one."""
HEAVY = 0.05
"""The judged rule must lose no match by more than this share, at any load."""
BOUND = 0.9
"""A load is sustained while this share of the calls meets the service level (DistServe's attainment). It fits load 1.0,
where lpwl's 90th percentile of TTFT crosses the service level."""
Of = Callable[[Workload, str, int], float]
_TIMES = ("ttft_mean_ms", "ttft_p99_ms")


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
                up = measure.higher_is_better
                found = workload.standings(measure, load)
                yield Match(workload, load, measure, sorted(found, key=lambda one: -one.mean if up else one.mean))


def holds(standing: Standing) -> bool:
    """Whether the rule is first, or not inferior to the first."""
    return standing.best or bool(standing.not_inferior)


def losses(scores: Scores) -> list[Loss]:
    """Return the matches that the judged rule loses, the worst first."""
    found = [Loss(match, ours) for match in matches(scores) if not holds(ours := match.of(scores.judged))]
    return sorted(found, key=lambda loss: -loss.ours.difference)


@dataclass(frozen=True, slots=True)
class Overall:
    """One rule over several workloads.

    `goodput` is per second, in calls of each workload's load 1.0. `times` are, by measure, geometric means over cells
    of the rule's mean over the best rule's. `held` counts the matches below saturation, out of `played`, in which the
    rule is first or not inferior. `worst` is the largest share by which its mean is worse than the best, in any match.
    """

    policy: str
    goodput: Standing
    sustained: Standing
    times: Mapping[str, float]
    held: int
    played: int
    worst: float
    worst_at: str


def overall(scores: Scores) -> list[Overall]:
    """Return every rule's result, the highest goodput first."""
    goodput = _by_policy(_per_seed(scores, _relative))
    sustained = _by_policy(_per_seed(scores, _sustained))
    played = list(matches(scores))
    found = [_of(policy, goodput[policy], sustained[policy], played) for policy in scores.policies]
    return sorted(found, key=lambda one: (-one.goodput.mean, -one.sustained.mean))


def sustainable(loads: Sequence[float], shares: Sequence[float]) -> float:
    """Return the highest load up to which the goodput share stays at BOUND or above.

    Shares between two loads are interpolated linearly. The result is 0 if the lowest load misses BOUND, and the
    highest load played if none does.
    """
    if shares[0] < BOUND:
        return 0.0
    for place in range(1, len(loads)):
        before, after = shares[place - 1], shares[place]
        if after < BOUND:
            return loads[place - 1] + (loads[place] - loads[place - 1]) * (before - BOUND) / (before - after)
    return loads[-1]


def _per_seed(scores: Scores, of: Of) -> dict[str, list[float]]:
    return {
        policy: [fmean(of(workload, policy, seed) for workload in scores.workloads) for seed in range(scores.seeds)]
        for policy in scores.policies
    }


def _relative(workload: Workload, policy: str, seed: int) -> float:
    """Return goodput per second in calls of load 1.0, as the mean over loads."""
    found = [workload.values("goodput_per_s", policy, load)[seed] for load in workload.loads]
    return fmean(found) / workload.load_1_calls_per_s


def _sustained(workload: Workload, policy: str, seed: int) -> float:
    shares = [workload.values("goodput_share", policy, load)[seed] for load in workload.loads]
    return sustainable(workload.loads, shares)


def _by_policy(values: Mapping[str, Sequence[float]]) -> dict[str, Standing]:
    return {one.policy: one for one in standings(values, higher_is_better=True)}


def _of(policy: str, goodput: Standing, sustained: Standing, played: Sequence[Match]) -> Overall:
    below = [match for match in played if match.load < SATURATED]
    worst = max(played, key=lambda match: match.of(policy).difference)
    return Overall(
        policy,
        goodput,
        sustained,
        {name: _ratio(policy, [match for match in played if match.measure.name == name]) for name in _TIMES},
        sum(holds(match.of(policy)) for match in below),
        len(below),
        worst.of(policy).difference,
        f"{worst.workload.title}, load {worst.load:g}, {worst.measure.title}",
    )


def _ratio(policy: str, played: Iterable[Match]) -> float:
    """Return the geometric mean of the rule's means over the best ones; a mean of 0 (nothing answered) is skipped."""
    found = [(match.of(policy).mean, match.first.mean) for match in played]
    answered = [log(ours / best) for ours, best in found if ours > 0.0 < best]
    return exp(fmean(answered)) if answered else 1.0

"""What a run has shown so far, in bounded memory, and the findings that its reports have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, nan
from random import Random

import msgspec

from loadtest.load.records import Goals, Record
from loadtest.load.steady import Saturated, lag_problem, saturation_of
from loadtest.load.tally import Sample, Tally, group
from loadtest.report.verdict import Answer, GoalVerdict, verdict

KEPT_RECORDS = 100_000


@dataclass(slots=True)
class Results:
    """Takes every record of a run. Requests intended in the first `warm_up_s` count nowhere but in `warm_up`.

    The steady window is [warm-up end, last arrival]. `kept` are records without their later tokens: all of them up to
    `KEPT_RECORDS`, and from then on a uniform sample.
    """

    goals: Goals = field(default_factory=dict)
    attainment: float = 0.99
    warm_up_s: float = 0.0
    open_loop: bool = True
    warm_up: int = 0
    tally: Tally = field(init=False)
    groups: dict[str, Tally] = field(default_factory=dict)
    lags: Sample = field(default_factory=Sample)
    kept: list[Record] = field(default_factory=list)
    first_s: float = inf
    last_arrival_s: float = -inf
    last_end_s: float = -inf
    _rng: Random = field(default_factory=lambda: Random(0))

    def __post_init__(self) -> None:
        self.tally = Tally(self.goals)

    def add(self, records: Sequence[Record], lags_s: Sequence[float] = ()) -> None:
        self.lags.extend(lags_s)
        for one in records:
            if one.intended_s < self.warm_up_s:
                self.warm_up += 1
            else:
                self._count(one)

    def _count(self, one: Record) -> None:
        self.tally.add(one)
        group(self.groups, one, self.goals)
        self.first_s = min(self.first_s, one.intended_s)
        self.last_arrival_s = max(self.last_arrival_s, one.intended_s)
        self.last_end_s = max(self.last_end_s, one.ended_s)
        place = len(self.kept) if len(self.kept) < KEPT_RECORDS else self._rng.randrange(self.tally.total)
        if place < KEPT_RECORDS:
            self.kept[place : place + 1] = [msgspec.structs.replace(one, token_s=one.token_s[:1])]

    @property
    def duration_s(self) -> float:
        """From the first request to the last end, the drain included, as `vllm bench serve` counts it."""
        return self.last_end_s - self.first_s

    @property
    def window_s(self) -> float:
        return self.last_arrival_s - self.first_s

    def window_rate(self) -> float:
        """Return completed requests per second of the steady window, without the drain."""
        ended = sum(one.good and one.ended_s <= self.last_arrival_s for one in self.kept)
        return ended / len(self.kept) * self.tally.total / self.window_s if self.window_s > 0.0 else nan

    def most_at_once(self) -> int:
        changes = sorted([(one.intended_s, 1) for one in self.kept] + [(one.ended_s, -1) for one in self.kept])
        at_once = most = 0
        for _, change in changes:
            at_once += change
            most = max(most, at_once)
        return most

    def judged(self) -> Findings:
        by_time = sorted(self.kept, key=lambda one: one.intended_s)
        saturated = saturation_of(by_time) if self.open_loop else None
        void = lag_problem(self.lags.ordered().values, by_time)
        goal = verdict(self.tally.total - self.tally.met, self.tally.total, self.attainment) if self.goals else None
        return Findings(goal, saturated, void, self.tally.completed > 0)


@dataclass(frozen=True, slots=True)
class Findings:
    """`void` says why the run does not count, "" if it does."""

    goal: GoalVerdict | None
    saturated: Saturated | None
    void: str
    answered: bool

    @property
    def answer(self) -> Answer:
        """Return the exit code. Nothing is met by a run that is void, or whose latency depends on its length."""
        if not self.answered:
            return Answer.NOT_MET
        if self.void:
            return Answer.UNDECIDED
        if self.goal is None:
            return Answer.MET
        late = self.goal.answer is Answer.MET and self.saturated is not None
        return Answer.UNDECIDED if late else self.goal.answer

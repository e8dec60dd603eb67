"""A fleet on a piece of traffic: seeds are simulated until the verdict on all of them is certain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from statistics import fmean
from typing import TypeVar

from loadtest.lab.cell import Cell, Fleet, Setting, Slo
from loadtest.lab.measures import Figures, Measures
from loadtest.lab.models import Models
from loadtest.lab.store import Result
from loadtest.plan.traffic import Piece
from loadtest.report.verdict import Answer, GoalVerdict, ShareInterval, needed_total, verdict, wilson
from loadtest.sim.handover import HandoverSetting
from router.placement.admission.classes import RequestClass
from router.placement.fleet.endpoints import DECODE, PREFILL

K = TypeVar("K")
Run = Callable[[Sequence[Cell]], list[Result]]


@dataclass(frozen=True, slots=True)
class Goal:
    """The service level, the share of calls that has to meet it, and the growth of the traffic for which it holds.

    With `classes` it has to hold for the calls of each class, by the class's own service level if it has one.
    """

    slo: Slo
    share: float
    growth: float = 1.0
    classes: tuple[RequestClass, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetShape:
    """A fleet of `workers`, the first `prefill_workers` of which compute prompts for the others; None: no roles."""

    profile: str
    policy: str
    workers: int
    prefill_workers: int | None = None

    @property
    def handover(self) -> HandoverSetting | None:
        first = self.prefill_workers
        return None if first is None else HandoverSetting((PREFILL,) * first + (DECODE,) * (self.workers - first))

    def __str__(self) -> str:
        roles = "" if self.prefill_workers is None else f" ({self.prefill_workers} prefill)"
        return f"{self.workers} x {self.profile}{roles}, {self.policy}"


@dataclass(frozen=True, slots=True)
class Trial:
    """The measures of the seeds that were simulated, and the verdict on all of their calls.

    With classes it is met if it is for each of them; `classes` has the verdicts of those that have calls.
    """

    shape: FleetShape
    verdict: GoalVerdict
    measures: tuple[Measures, ...]
    classes: Mapping[str, GoalVerdict] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return self.verdict.answer is Answer.MET

    @property
    def attained(self) -> ShareInterval:
        """The share of calls that met the service level, with Wilson's 95 % interval."""
        return interval(self.verdict)

    @property
    def reached(self) -> float:
        """The share of calls that met the service level, in the class in which the fewest did."""
        return min(interval(one).share for one in self.classes.values() or [self.verdict])

    def mean(self, figure: Callable[[Measures], float]) -> float:
        """Return the mean of a figure over the seeds."""
        return fmean(map(figure, self.measures))

    def waiting(self) -> Counter[str]:
        return sum((Counter(one.pressure.waiting) for one in self.measures), Counter())


def interval(one: GoalVerdict) -> ShareInterval:
    return wilson(one.total - one.late, one.total)


class Trials:
    """Simulates fleets, `jobs` seeds at a time, which changes no result."""

    def __init__(self, run: Run, goal: Goal, models: Models, jobs: int) -> None:
        self._run = run
        self.goal = goal
        self._models = models
        self._jobs = jobs

    def several(self, shapes: Mapping[K, FleetShape], piece: Piece, seeds: int) -> dict[K, Trial]:
        """Simulate fleets side by side, seed after seed, until the verdict on all `seeds` of each is certain enough."""
        done: dict[K, list[Measures]] = {key: [] for key in shapes}
        trials: dict[K, Trial] = {}
        while going := [key for key in shapes if key not in trials]:
            more = ceil(self._jobs / len(going))
            asked = [(key, seed) for key in going for seed in range(seeds)[len(done[key]) :][:more]]
            results = self._run([self._cell(shapes[key], piece, seed, 1.0) for key, seed in asked])
            for (key, _), result in zip(asked, results, strict=True):
                if key in trials:  # a seed beside the one that decided
                    continue
                done[key].append(result.measures)
                trial = self._trial(shapes[key], done[key], seeds)
                if trial.verdict.answer is not Answer.UNDECIDED or len(done[key]) == seeds:
                    trials[key] = trial
        return trials

    def one_seed(self, asked: Sequence[tuple[FleetShape, Piece, float]]) -> list[Trial]:
        """Simulate several fleets with one seed each, side by side; the last value is a factor on the step times."""
        results = self._run([self._cell(shape, piece, 0, step_time) for shape, piece, step_time in asked])
        return [self._trial(shape, [result.measures], 1) for (shape, _, _), result in zip(asked, results, strict=True)]

    def _trial(self, shape: FleetShape, done: Sequence[Measures], wanted: int) -> Trial:
        every = self._judged([one.all for one in done], wanted)
        if not self.goal.classes:
            return Trial(shape, every, tuple(done))
        names = [one.name for one in self.goal.classes if any(one.name in seed.kinds for seed in done)]
        by_class = {
            name: self._judged([seed.kinds[name] for seed in done if name in seed.kinds], wanted) for name in names
        }
        answers = {one.answer for one in by_class.values()}
        answer = next((one for one in (Answer.NOT_MET, Answer.UNDECIDED) if one in answers), Answer.MET)
        return Trial(shape, replace(every, answer=answer), tuple(done), by_class)

    def _judged(self, done: Sequence[Figures], wanted: int) -> GoalVerdict:
        """Judge the calls of the seeds so far, as all those that are wanted would be judged.

        A verdict comes early if it cannot change, or if it stays although all seeds to come are just at the goal.
        Seeds have nearly the same calls. One seed alone does not meet the goal for all: its workers may be fast.
        """
        share = self.goal.share
        calls = sum(one.calls for one in done)
        late = sum(_late(one) for one in done)
        judged = verdict(late, calls, share)
        if len(done) == wanted:
            return judged
        total = calls * wanted // len(done)
        expected = verdict(late + round((total - calls) * (1.0 - share)), total, share).answer
        if needed_total(late, share) > total:
            answer = Answer.NOT_MET
        else:
            answer = judged.answer if len(done) > 1 and judged.answer is expected else Answer.UNDECIDED
        return replace(judged, answer=answer)

    def _cell(self, shape: FleetShape, piece: Piece, seed: int, step_time: float) -> Cell:
        models = replace(self._models, warm_up_s=piece.warm_up_s, step_time=self._models.step_time * step_time)
        fleet = Fleet(shape.workers, shape.profile)
        window_s = piece.warm_up_s + piece.length_s
        setting = Setting(fleet, self.goal.slo, models, window_s, shape.handover, self.goal.classes)
        return Cell(piece.trace, shape.policy, self.goal.growth, seed, setting)


def _late(figures: Figures) -> int:
    return figures.late_first_tokens + figures.slow_answers + figures.late_ends

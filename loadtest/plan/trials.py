"""A fleet on a piece of traffic: seeds are simulated until the verdict on all of them is certain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from router.placement.fleet.endpoints import DECODE, PREFILL

K = TypeVar("K")
Run = Callable[[Sequence[Cell]], list[Result]]


@dataclass(frozen=True, slots=True)
class Goal:
    """The service level, the share of calls that has to meet it, and the growth of the traffic for which it holds."""

    slo: Slo
    share: float
    growth: float = 1.0


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
    """The measures of the seeds that were simulated, and the verdict on all of their calls."""

    shape: FleetShape
    verdict: GoalVerdict
    measures: tuple[Measures, ...]

    @property
    def holds(self) -> bool:
        return self.verdict.answer is Answer.MET

    @property
    def attained(self) -> ShareInterval:
        """The share of calls that met the service level, with Wilson's 95 % interval."""
        return wilson(self.verdict.total - self.verdict.late, self.verdict.total)

    def mean(self, figure: Callable[[Measures], float]) -> float:
        """Return the mean of a figure over the seeds."""
        return fmean(map(figure, self.measures))

    def waiting(self) -> Counter[str]:
        return sum((Counter(one.pressure.waiting) for one in self.measures), Counter())


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
                judged = self._judged(done[key], seeds)
                if judged.answer is not Answer.UNDECIDED or len(done[key]) == seeds:
                    trials[key] = Trial(shapes[key], judged, tuple(done[key]))
        return trials

    def one_seed(self, asked: Sequence[tuple[FleetShape, Piece, float]]) -> list[Trial]:
        """Simulate several fleets with one seed each, side by side; the last value is a factor on the step times."""
        results = self._run([self._cell(shape, piece, 0, step_time) for shape, piece, step_time in asked])
        return [
            Trial(shape, self._judged([result.measures], 1), (result.measures,))
            for (shape, _, _), result in zip(asked, results, strict=True)
        ]

    def _judged(self, done: Sequence[Measures], wanted: int) -> GoalVerdict:
        """Judge the calls of the seeds so far, as all those that are wanted would be judged.

        A verdict comes early if it cannot change, or if it stays although all seeds to come are just at the goal.
        Seeds have nearly the same calls. One seed alone does not meet the goal for all: its workers may be fast.
        """
        share = self.goal.share
        calls = sum(one.all.calls for one in done)
        late = sum(_late(one.all) for one in done)
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
        setting = Setting(fleet, self.goal.slo, models, piece.warm_up_s + piece.length_s, shape.handover)
        return Cell(piece.trace, shape.policy, self.goal.growth, seed, setting)


def _late(figures: Figures) -> int:
    return figures.late_first_tokens + figures.slow_answers + figures.late_ends

"""The size of one kind of fleet, what limits it, and how the size moves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeAlias, TypeVar

from loadtest.plan.hours import HourNeed, by_hour
from loadtest.plan.search import Search, found_each, least
from loadtest.plan.traffic import Piece, Traffic
from loadtest.plan.trials import FleetShape, Trial, Trials
from loadtest.report.verdict import Answer

WRONG_BY = (0.8, 1.0, 1.2)
"""Factors on the step times for which the size is found again."""
K = TypeVar("K")
AGGREGATED, SPLIT = "aggregated", "split"
LIMITS = {"batch": "batch", "kv": "KV cache", "prefill": "prefill"}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kind of worker: `price_per_hour` of one, None if not given, and the most that there may be."""

    profile: str
    price_per_hour: float | None
    most: int


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fleet that is sized: its workers, the rule that routes to them, and their roles."""

    candidate: Candidate
    policy: str
    roles: str = AGGREGATED


@dataclass(frozen=True, slots=True)
class Size:
    """The least fleet of a kind that holds in the busiest window, or the largest one if none does.

    `trials` are those of all counts that were tried.
    """

    kind: Kind
    fleet: Trial
    trials: Mapping[int, Trial]

    @property
    def met(self) -> bool:
        return self.fleet.verdict.answer is Answer.MET

    @property
    def workers(self) -> int:
        return self.fleet.shape.workers

    @property
    def cost_per_hour(self) -> float | None:
        price = self.kind.candidate.price_per_hour
        return None if price is None else price * self.workers

    @property
    def one_lost(self) -> Trial | None:
        """The trial with one worker fewer; None if there is only one, or if no fleet holds."""
        return self.trials.get(self.workers - 1) if self.met else None

    @property
    def limit(self) -> str | None:
        """What makes calls miss with one worker fewer, or with the fleet that does not hold; None if none miss."""
        return limit(self.one_lost or self.fleet)


@dataclass(frozen=True, slots=True)
class Asked:
    """A count of workers of a kind, for traffic, if steps take `step_time` times as long as the model says."""

    kind: Kind
    workers: int
    piece: Piece
    step_time: float = 1.0


Need: TypeAlias = Generator[Asked, Trial, int | None]
"""Asks for fleets, and returns the least count of workers that holds; None if none does."""


def limit(trial: Trial) -> str | None:
    first = trial.mean(lambda one: one.all.late_first_tokens)
    later = trial.mean(lambda one: one.all.slow_answers + one.all.late_ends)
    if not first + later:
        return None
    if later > first:
        return "decode"
    return LIMITS[max(LIMITS, key=trial.waiting().__getitem__)] if trial.waiting() else "prefill"


class Sizing:
    """Finds sizes of fleets on `traffic`. `tried` is called with each trial of several seeds."""

    def __init__(self, trials: Trials, traffic: Traffic, seeds: int, tried: Callable[[Trial], None]) -> None:
        self._trials = trials
        self._traffic = traffic
        self._seeds = seeds
        self._tried = tried
        self._seen: dict[Kind, dict[int, Trial]] = {}
        """Trials in the busiest window: of one seed, until there are some of several."""

    def sizes(self, kinds: Sequence[Kind]) -> list[Size]:
        """Return the size of each kind. One seed of all kinds, side by side, says where the search begins."""
        busiest = self._traffic.busiest
        # As many workers as would be busy all the time without a cache.
        busy = ceil(self._trials.goal.growth * busiest.work_s / busiest.length_s)
        searches = {kind: least(busy, kind.candidate.most) for kind in kinds}
        guesses = self._by_one_seed({kind: self._asking(search, kind, busiest) for kind, search in searches.items()})
        sizes = {kind: self._size(kind, guesses[kind] or kind.candidate.most) for kind in kinds}
        return list(found_each(sizes, self._seed_by_seed).values())

    def around(self, size: Size, factors: Sequence[float]) -> tuple[list[Trial], dict[float, int | None]]:
        """Play the peak hour in full, and find the size for factors on the step times, side by side with one seed."""
        peak: list[Trial] = []
        searches: dict[float | None, Need] = {None: self._in_full(size, peak)}
        for factor in factors:
            search = least(ceil(size.workers * factor), size.kind.candidate.most)
            searches[factor] = self._asking(search, size.kind, self._traffic.busiest, factor)
        found = self._by_one_seed(searches)
        return peak, {factor: found[factor] for factor in factors}

    def by_hour(self, size: Size, workers: int) -> list[HourNeed]:
        """Return each hour with the workers, at most this many, that one seed of its sample needs."""
        hours = self._traffic.hours
        return by_hour(
            hours,
            workers,
            lambda tried: self._by_one_seed(
                {place: self._asking(search, size.kind, hours[place].sample) for place, search in tried.items()}
            ),
        )

    def _in_full(self, size: Size, trials: list[Trial]) -> Need:
        """Ask for the peak hour with more and more workers; collect the `trials`, none if there is no such hour."""
        peak = self._traffic.peak
        if peak is None:
            return size.workers
        for workers in range(size.workers, size.kind.candidate.most + 1):
            trials.append((yield Asked(size.kind, workers, peak)))
            if self._reaches(trials[-1]):
                return workers
        return None

    def _size(self, kind: Kind, guess: int) -> Generator[FleetShape, Trial, Size]:
        trials, most = self._seen.setdefault(kind, {}), kind.candidate.most
        search = least(guess, most)
        workers = next(search)
        while True:
            best: Trial | None = None
            for shape in self._shapes(kind, workers):
                one = yield shape
                if best is None or (one.holds, _share(one)) > (best.holds, _share(best)):
                    trials[workers] = best = one
                if one.holds:
                    break
            try:
                workers = search.send(trials[workers].holds)
            except StopIteration as end:
                return Size(kind, trials[end.value or most], dict(sorted(trials.items())))

    def _seed_by_seed(self, shapes: Mapping[Kind, FleetShape]) -> dict[Kind, Trial]:
        trials = self._trials.several(shapes, self._traffic.busiest, self._seeds)
        for trial in trials.values():
            self._tried(trial)
        return trials

    def _asking(self, search: Search, kind: Kind, piece: Piece, step_time: float = 1.0) -> Need:
        workers = next(search)
        while True:
            trial = yield Asked(kind, workers, piece, step_time)
            try:
                workers = search.send(self._reaches(trial))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    def _by_one_seed(self, needs: Mapping[K, Need]) -> dict[K, int | None]:
        """Run searches side by side, with the best split of each fleet."""
        return found_each(needs, self._one_seed)

    def _one_seed(self, asked: Mapping[K, Asked]) -> dict[K, Trial]:
        each = [
            (key, (shape, one.piece, one.step_time))
            for key, one in asked.items()
            for shape in self._shapes(one.kind, one.workers)
        ]
        done = self._trials.one_seed([fleet for _, fleet in each])
        best = {key: trial for (key, _), trial in sorted(zip(each, done, strict=True), key=lambda one: _share(one[1]))}
        for key, one in asked.items():
            if one == Asked(one.kind, one.workers, self._traffic.busiest):
                self._seen.setdefault(one.kind, {})[one.workers] = best[key]
        return best

    def _reaches(self, trial: Trial) -> bool:
        return _share(trial) >= self._trials.goal.share

    def _shapes(self, kind: Kind, workers: int) -> Sequence[FleetShape]:
        """Return the fleets of a count: for a split the one whose halves have equal work, and its neighbours."""
        name, policy = kind.candidate.profile, kind.policy
        if kind.roles == AGGREGATED or workers == 1:
            return [FleetShape(name, policy, workers)]
        busiest = self._traffic.busiest
        first = round(workers * busiest.prefill_s / busiest.work_s)
        near = [min(workers - 1, max(1, one)) for one in (first, first - 1, first + 1)]
        return [FleetShape(name, policy, workers, one) for one in dict.fromkeys(near)]


def _share(trial: Trial) -> float:
    return trial.reached

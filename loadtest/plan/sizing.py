"""The size of one kind of fleet, what limits it, and how the size moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

from loadtest.plan.search import Search, found, found_each, least
from loadtest.plan.traffic import Hour, Piece, Traffic
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
        guesses = self._by_one_seed(searches, lambda kind, count: Asked(kind, count, busiest))
        return [self._size(kind, guesses[kind] or kind.candidate.most) for kind in kinds]

    def in_full(self, size: Size) -> list[Trial]:
        """Play the whole peak hour with one seed, and with more workers until it holds; empty if there is no hour."""
        peak, done = self._traffic.peak, list[Trial]()
        if peak is None:
            return done
        for workers in range(size.workers, size.kind.candidate.most + 1):
            shapes = self._shapes(size.kind, workers)
            done += [max(self._trials.one_seed([(one, peak, 1.0) for one in shapes]), key=_share)]
            if self._reaches(done[-1]):
                break
        return done

    def if_wrong(self, size: Size) -> dict[float, int | None]:
        """Return the workers that one seed needs if steps take these factors as long as the model says."""
        searches = {factor: least(ceil(size.workers * factor), size.kind.candidate.most) for factor in WRONG_BY}
        busiest = self._traffic.busiest
        sizes = self._by_one_seed(searches, lambda factor, count: Asked(size.kind, count, busiest, step_time=factor))
        return dict(sorted(sizes.items()))

    def by_hour(self, size: Size, workers: int) -> list[tuple[Hour, int | None]]:
        """Return each hour with the workers, at most this many, that one seed of its sample needs; 0 without calls."""
        hours = self._traffic.hours
        work = [one.sample.work_s / one.sample.length_s for one in hours]
        searches = {
            place: least(ceil(workers * work[place] / max(work)), workers)
            for place, one in enumerate(hours)
            if one.sample.calls
        }
        needs = self._by_one_seed(searches, lambda place, count: Asked(size.kind, count, hours[place].sample))
        return [(one, needs.get(place, 0)) for place, one in enumerate(hours)]

    def _size(self, kind: Kind, guess: int) -> Size:
        trials = self._seen.setdefault(kind, {})

        def holds(workers: int) -> bool:
            best: Trial | None = None
            for shape in self._shapes(kind, workers):
                one = self._trials.trial(shape, self._traffic.busiest, self._seeds)
                self._tried(one)
                if best is None or (one.holds, _share(one)) > (best.holds, _share(best)):
                    trials[workers] = best = one
                if one.holds:
                    break
            return trials[workers].holds

        workers = found(least(guess, kind.candidate.most), holds)
        return Size(kind, trials[workers or kind.candidate.most], dict(sorted(trials.items())))

    def _by_one_seed(self, searches: Mapping[K, Search], asked: Callable[[K, int], Asked]) -> dict[K, int | None]:
        """Run searches side by side by the share alone, with the best split of each fleet."""

        def hold(counts: Mapping[K, int]) -> dict[K, bool]:
            fleets = {key: asked(key, count) for key, count in counts.items()}
            each = [
                (key, (shape, one.piece, one.step_time))
                for key, one in fleets.items()
                for shape in self._shapes(one.kind, one.workers)
            ]
            done = self._trials.one_seed([fleet for _, fleet in each])
            best = {
                key: trial for (key, _), trial in sorted(zip(each, done, strict=True), key=lambda one: _share(one[1]))
            }
            for key, one in fleets.items():
                if one == Asked(one.kind, one.workers, self._traffic.busiest):
                    self._seen.setdefault(one.kind, {})[one.workers] = best[key]
            return {key: self._reaches(trial) for key, trial in best.items()}

        return found_each(searches, hold)

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
    return trial.attained.share

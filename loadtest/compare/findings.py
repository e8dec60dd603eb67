"""The findings of one command, and the measures compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from loadtest.compare.trial import Trial
from loadtest.lab.cell import Cell
from loadtest.lab.measures import MEASURES, Measure, Measures
from loadtest.lab.saturation import Saturation
from loadtest.report.confidence import Interval, interval

# Goodput is per second. Where clients wait for an answer before the next call, a slow rule gets fewer calls, and may
# meet the SLO for a larger share of them.
_NAMES = ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "e2e_mean_ms", "goodput_per_s", "hit_share")
COMPARED = tuple(one for name in _NAMES for one in MEASURES if one.name == name)
IMBALANCE = next(one for one in MEASURES if one.name == "imbalance")
Values = Mapping[str, Sequence[float]]
"""One value per seed, the same seeds in the same order for every rule."""
TTFTS = ("ttft_mean_ms", "ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms")


@dataclass(frozen=True, slots=True)
class Seed:
    """One seed's runs by contender, and in virtual time by rule."""

    seed: int
    live: dict[str, Trial]
    modelled: dict[str, Measures]


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of every seed that all contenders were run with.

    `cell` is the first one: the workload and the fleet. Its load is a fraction of `saturation`, which is None where
    only a rate was requested. `policies` are Warmroute's rules, `names` all contenders. Ratios are to the last rule.
    """

    cell: Cell
    backend: str
    time_scale: float
    names: Sequence[str]
    policies: Sequence[str]
    saturation: Saturation | None
    seeds: Sequence[Seed]
    case: str | None = None

    @property
    def baseline(self) -> str:
        return self.policies[-1] if self.policies else self.names[-1]

    def live(self, measure: Measure) -> Values:
        return {name: [measure.of(one.live[name].measures) for one in self.seeds] for name in self.names}

    def modelled(self, measure: Measure) -> Values:
        return {rule: [measure.of(one.modelled[rule]) for one in self.seeds] for rule in self.policies}

    def ttft_ms(self, name: str, figure: str, *, live: bool) -> list[float]:
        """Return a TTFT figure of a contender or a rule, one per seed."""
        sides = [one.live[name].measures if live else one.modelled[name] for one in self.seeds]
        return [float(getattr(side.all, figure)) for side in sides]

    def ratio(self, name: str, figure: str, *, live: bool) -> Interval:
        """Return a TTFT figure in units of the baseline's: the mean over seeds, and its 95 % interval."""
        sides = self.ttft_ms(name, figure, live=live), self.ttft_ms(self.baseline, figure, live=live)
        return interval([own / base for own, base in zip(*sides, strict=True)])

    def usage(self, name: str, field: str) -> list[float]:
        return [float(getattr(one.live[name].usage, field)) for one in self.seeds]

    def calls(self) -> float:
        return fmean(one.live[name].measures.all.calls for one in self.seeds for name in self.names)

    def errors(self) -> list[str]:
        return [
            f"{name}, seed {one.seed}: {error}"
            for one in self.seeds
            for name, trial in one.live.items()
            for error in trial.errors
        ]

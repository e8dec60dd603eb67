"""The findings of one command, and the measures compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.lab.cell import Cell
from loadtest.lab.findings import MEASURES, Measure
from loadtest.lab.measures import Measures
from loadtest.lab.saturation import Saturation
from loadtest.lab.store import Result
from loadtest.live.modelled import UNMEASURED
from loadtest.live.ordering import Ordering, Values, ordering
from loadtest.live.trial import Trial

# Goodput is per second. Where clients wait for an answer before the next call, a slow rule gets fewer calls, and may
# meet the SLO for a larger share of them.
_NAMES = ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "e2e_mean_ms", "goodput_per_s", "hit_share")
COMPARED = tuple(one for name in _NAMES for one in MEASURES if one.name == name)


@dataclass(frozen=True, slots=True)
class Seed:
    """One seed's runs, live and in virtual time, by rule."""

    seed: int
    live: dict[str, Trial]
    modelled: dict[str, Measures]


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of every seed that all rules were run with.

    `cell` is the first one: the workload and the fleet. Its load is a fraction of `saturation`, which is None where
    only a rate was requested. `case` is the name of the case, None for another workload.
    """

    cell: Cell
    backend: str
    time_scale: float
    policies: Sequence[str]
    saturation: Saturation | None
    seeds: Sequence[Seed]
    case: str | None = None

    def live(self, measure: Measure) -> Values:
        """Return each rule's live values, one per seed."""
        return {rule: [_value(measure, one.live[rule].measures) for one in self.seeds] for rule in self.policies}

    def modelled(self, measure: Measure) -> Values:
        """Return each rule's values in virtual time, one per seed."""
        return {rule: [_value(measure, one.modelled[rule]) for one in self.seeds] for rule in self.policies}

    def orderings(self) -> list[Ordering]:
        return [
            ordering(
                measure.title,
                self.live(measure),
                self.modelled(measure),
                higher_is_better=bool(measure.higher_is_better),
            )
            for measure in COMPARED
        ]

    def errors(self) -> list[str]:
        """Return the errors of all failed calls, each with its rule and seed."""
        return [
            f"{rule}, seed {one.seed}: {error}"
            for one in self.seeds
            for rule, trial in one.live.items()
            for error in trial.errors
        ]


def _value(measure: Measure, measures: Measures) -> float:
    return measure.of(Result("", "", {}, measures, UNMEASURED))

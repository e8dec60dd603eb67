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

# Goodput by the second: where clients wait for answers before they ask again, a slow rule is sent fewer calls, and may
# well serve a larger share of them.
_NAMES = ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "e2e_mean_ms", "goodput_per_s", "hit_share")
COMPARED = tuple(one for name in _NAMES for one in MEASURES if one.name == name)


@dataclass(frozen=True, slots=True)
class Seed:
    """One seed's runs, by rule: live, and in virtual time."""

    seed: int
    live: dict[str, Trial]
    modelled: dict[str, Measures]


@dataclass(frozen=True, slots=True)
class Findings:
    """Every seed that all rules were run with. `cell` is the first one: what is asked, of which fleet; its load is a
    fraction of `saturation`, and None where only a rate was asked for."""

    cell: Cell
    backend: str
    time_scale: float
    policies: Sequence[str]
    saturation: Saturation | None
    seeds: Sequence[Seed]

    def live(self, measure: Measure) -> Values:
        """Each rule's values, one per seed."""
        return {rule: [_value(measure, one.live[rule].measures) for one in self.seeds] for rule in self.policies}

    def modelled(self, measure: Measure) -> Values:
        """The same in virtual time."""
        return {rule: [_value(measure, one.modelled[rule]) for one in self.seeds] for rule in self.policies}

    def orderings(self) -> list[Ordering]:
        """One per measure."""
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
        """Of every call that failed, rule and seed first."""
        return [
            f"{rule}, seed {one.seed}: {error}"
            for one in self.seeds
            for rule, trial in one.live.items()
            for error in trial.errors
        ]


def _value(measure: Measure, measures: Measures) -> float:
    return measure.of(Result("", "", {}, measures, UNMEASURED))

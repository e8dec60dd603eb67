"""All cells of one trace, and the findings from their results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtest.lab.cell import Cell, Setting
from loadtest.lab.findings import Doubt, Findings
from loadtest.lab.saturation import RULE, Run, Saturation, SaturationError, saturation
from loadtest.lab.store import Result


@dataclass(frozen=True, slots=True)
class Study:
    trace: str
    policies: Sequence[str]
    loads: Sequence[float]
    seeds: int
    setting: Setting
    first_seed: int = 0
    round_robin: bool = True
    """Whether to find round robin's saturation too."""

    def first(self) -> Cell:
        """Return the bisection's first cell: the trace at its own rate."""
        return Cell(self.trace, RULE, 1.0, 0, self.setting)

    def saturations(self, run: Run) -> tuple[Saturation, Saturation | None]:
        """Return load 1.0, and the rate at which round robin saturates.

        The latter is None if it is not wanted, or if round robin holds the service level at no rate.

        Raises:
            SaturationError: there is no load 1.0.
        """
        one = saturation(self.first(), RULE, run)
        if not self.round_robin:
            return one, None
        try:
            return one, saturation(self.first(), "round_robin", run)
        except SaturationError:  # prefilling long contexts again at every turn is too slow even for an idle fleet
            return one, None

    def cells(self, one: Saturation, setting: Setting | None = None) -> list[Cell]:
        """Return every cell. Cells of one plan are neighbours, so that each plan is drawn once."""
        return [
            Cell(self.trace, policy, one.rate * load, seed, setting or self.setting, load)
            for seed, load, policy in self._every()
        ]

    def _every(self) -> Iterator[tuple[int, float, str]]:
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        return ((seed, load, policy) for seed in seeds for load in self.loads for policy in self.policies)

    def findings(
        self, one: Saturation, robin: Saturation | None, results: Sequence[Result], doubts: Sequence[Doubt] = ()
    ) -> Findings:
        asked = (self.trace, self.setting, self.policies, self.loads)
        return Findings(*asked, one, robin, tuple(results), tuple(doubts), self.round_robin)

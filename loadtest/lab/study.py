"""All cells of one trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.lab.cell import Cell, Setting
from loadtest.lab.saturation import RULE, Run, Saturation, SaturationError, saturation


@dataclass(frozen=True, slots=True)
class Study:
    """Rules at several loads with seeds from `first_seed` on. `round_robin`: whether to find its saturation too."""

    trace: str
    policies: Sequence[str]
    loads: Sequence[float]
    seeds: int
    setting: Setting
    first_seed: int = 0
    round_robin: bool = False

    def saturations(self, run: Run) -> tuple[Saturation, Saturation | None]:
        """Return load 1.0, and the rate at which round robin saturates.

        The latter is None if it is not wanted, or if round robin holds the service level at no rate.

        Raises:
            SaturationError: there is no load 1.0.
        """
        first = Cell(self.trace, RULE, 1.0, 0, self.setting)
        one = saturation(first, RULE, run)
        if not self.round_robin:
            return one, None
        try:
            return one, saturation(first, "round_robin", run)
        except SaturationError:  # prefilling long contexts again at every turn is too slow even for an idle fleet
            return one, None

    def cells(self, one: Saturation) -> list[Cell]:
        """Return every cell. Cells of one plan are neighbours, so that each plan is drawn once."""
        return [
            Cell(self.trace, policy, one.rate * load, seed, self.setting, load)
            for seed in range(self.first_seed, self.first_seed + self.seeds)
            for load in self.loads
            for policy in self.policies
        ]

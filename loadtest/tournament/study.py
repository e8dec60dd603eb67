"""All cells of one workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.lab.cell import Cell, Setting
from loadtest.lab.saturation import RULE, Run, Saturation, SaturationError, saturation

ENOUGH_SEEDS = 10


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is played: `policies` at `loads`, with `seeds` windows of `window_s` from `first_seed` on.

    The first of `policies` is the judged one.
    """

    policies: Sequence[str]
    loads: Sequence[float]
    seeds: int
    window_s: float
    first_seed: int = 0

    @property
    def quick(self) -> bool:
        """Whether there are too few seeds for a published table."""
        return self.seeds < ENOUGH_SEEDS


@dataclass(frozen=True, slots=True)
class Study:
    """One workload on one fleet. `source` is a trace or generator."""

    name: str
    title: str
    source: str
    setting: Setting
    extent: Extent

    def saturation(self, run: Run, policy: str = RULE) -> Saturation:
        """Return load 1.0, or the rate at which another rule saturates.

        Raises:
            SaturationError: there is none.
        """
        return saturation(Cell(self.source, policy, 1.0, 0, self.setting), policy, run)

    def round_robin(self, run: Run) -> Saturation | None:
        """Return the rate at which round robin saturates; None if it holds the service level at no rate."""
        try:
            return self.saturation(run, "round_robin")
        except SaturationError:  # prefilling long contexts again at every turn is too slow even for an idle fleet
            return None

    def cells(self, one: Saturation) -> list[Cell]:
        """Return every cell. Cells of one plan are neighbours, so that each plan is drawn once."""
        extent = self.extent
        return [
            Cell(self.source, policy, one.rate * load, seed, self.setting, load)
            for seed in range(extent.first_seed, extent.first_seed + extent.seeds)
            for load in extent.loads
            for policy in extent.policies
        ]

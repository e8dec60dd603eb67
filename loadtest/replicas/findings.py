"""What the parts measured, and the file that keeps it, so that parts can be measured one at a time."""

from __future__ import annotations

from pathlib import Path

import msgspec

from loadtest.bench.machine import Machine
from loadtest.replicas.cases import Case, Played
from loadtest.replicas.exchange import Cost
from loadtest.replicas.faults import Healing

FILE = "replicas.json"
PARTS = ("live", "sim", "exchange", "faults")


class Taken(msgspec.Struct, frozen=True):
    """How a part was measured. `busy` is the share of the machine's CPU time that all programs used meanwhile."""

    command: str
    date: str
    machine: Machine
    busy: float


class Findings(msgspec.Struct, frozen=True):
    """The results of the parts that have been measured; `taken` has an entry for each of them."""

    taken: dict[str, Taken] = {}
    live: list[Played] = []
    sim: dict[str, list[Played]] = {}
    exchange: list[Cost] = []
    faults: list[Healing] = []

    def comparisons(self) -> list[tuple[str, Played, Played]]:
        """Return where each case with several gateways was measured, the case, and that of one gateway."""
        groups = {"live": self.live, **{f"simulated, {name}": played for name, played in self.sim.items()}}
        found = []
        for place, played in groups.items():
            by_case: dict[Case, Played] = {each.case: each for each in played}
            found += [(place, each, by_case[each.case.alone]) for each in played if each.case.gateways > 1]
        return found


def read(folder: Path) -> Findings:
    """Return the findings of earlier runs; none if the folder has no file of them.

    Raises:
        ValueError: the file cannot be read; the text names it and the fix.
    """
    path = folder / FILE
    if not path.exists():
        return Findings()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Findings)
    except (OSError, msgspec.MsgspecError) as error:
        raise ValueError(f"{path} has no findings of this version: {error}; remove it") from None


def write(folder: Path, findings: Findings) -> None:
    """Write the findings."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(findings), indent=1))

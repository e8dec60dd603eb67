"""The same plans in virtual time, over the lab's model of the same fleet."""

from __future__ import annotations

from dataclasses import replace

from loadtest.lab.aggregate import aggregate
from loadtest.lab.cell import Cell
from loadtest.lab.measures import Measures
from loadtest.lab.run_cell import Stage, profile_of, slowed
from loadtest.lab.saturation import RULE, Saturation, saturation
from loadtest.lab.sources import Drawn, drawn
from loadtest.lab.store import Result


def asked(cell: Cell) -> Drawn:
    """Return the workload of both sides: the seed's window, in which each client limits the answer to its exact length.

    A live worker ends an answer at its limit, and the gateway reads the limit. The modelled workload therefore needs
    the same limits.
    """
    found = drawn(cell.trace, cell.seed, cell.setting.window_s, cell.rate, cell.setting.models.block_tokens)
    sessions = [
        replace(session, calls=tuple(replace(call, max_tokens=call.answer[1]) for call in session.calls))
        for session in found.plan.sessions
    ]
    return replace(found, plan=replace(found.plan, sessions=tuple(sessions)))


def play(cell: Cell, time_scale: float) -> Measures:
    """Play a cell on workers whose steps take `time_scale` times as long. Equal arguments give equal measures."""
    found = asked(cell)
    stage = Stage(cell, slowed(profile_of(cell, found), time_scale), found.length_s)
    stage.play(found.plan)
    stage.check()
    return aggregate(stage.played(found), cell.setting.slo)


def saturates(first: Cell, time_scale: float) -> Saturation:
    """Find load 1.0 of such a fleet by the lab's method.

    Raises:
        SaturationError: no load saturates the fleet.
    """

    def run(cells: list[Cell]) -> list[Result]:
        return [Result("", "", {}, play(cell, time_scale)) for cell in cells]

    return saturation(first, RULE, run)

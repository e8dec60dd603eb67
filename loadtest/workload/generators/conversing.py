"""Shapes whose sessions go on for many turns, so that at any time many are in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from loadtest.workload.draw import Draws, stream
from loadtest.workload.generators.shape import Seconds, Shape, says
from loadtest.workload.plan import Session, within


class Conversing(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run does not begin with an empty world: sessions of the time before it go on where they then are.

    Where they are is reckoned as if every answer were immediate. Nothing of them is cached yet, so their first calls
    are spread over `ramp_s`; with `history_s` 0 there are none. Calls that not even immediate answers would bring
    into the run are left out.
    """

    history_s: Annotated[Seconds, says("sessions begin so long before the run; 0 begins with none")] = 600.0
    ramp_s: Annotated[Seconds, says("sessions under way when the run begins go on within so long")] = 60.0

    def drawn(self, seed: int, length_s: float) -> Iterator[Session]:
        """Return sessions that begin in [0, length_s), and earlier ones that continue into it."""
        ramp = stream(seed, "ramp")
        whole = self.sessions(self._starts(seed, -self.history_s, length_s), Draws(stream(seed, "content")))
        for session in whole:
            rest = within(session, length_s)
            if rest is not None:
                underway = session.start_s < 0.0
                yield replace(rest, start_s=rest.start_s + ramp.uniform(0.0, self.ramp_s)) if underway else rest

"""Shapes whose sessions last many turns, so that at any time many sessions are under way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from loadtest.workload.draw import Draws, stream
from loadtest.workload.generators.shape import Seconds, Shape, says
from loadtest.workload.plan import Session, within


class Conversing(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shape whose run does not begin with an empty fleet: sessions that began before the run continue in it.

    Their progress is computed as if every answer were immediate. None of their context is cached yet, so their first
    calls are spread over `ramp_s`. With `history_s` 0 there are no such sessions. Calls that would come after the run
    even with immediate answers are left out.
    """

    history_s: Annotated[Seconds, says("sessions begin up to this time before the run; 0: none")] = 600.0
    ramp_s: Annotated[Seconds, says("time within which earlier sessions continue after the start")] = 60.0

    def drawn(self, seed: int, length_s: float) -> Iterator[Session]:
        """Return sessions that begin in [0, length_s), and earlier ones that continue into it."""
        ramp = stream(seed, "ramp")
        whole = self.sessions(self._starts(seed, -self.history_s, length_s), Draws(stream(seed, "content")))
        for session in whole:
            rest = within(session, length_s)
            if rest is not None:
                underway = session.start_s < 0.0
                yield replace(rest, start_s=rest.start_s + ramp.uniform(0.0, self.ramp_s)) if underway else rest

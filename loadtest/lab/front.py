"""The routers of the lab as clients see them: one, or several that see each other late."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadtest.sim.gateway import SimulatedGateway
from loadtest.sim.held import HeldCall
from loadtest.sim.placements import AnyPlacement
from loadtest.sim.sessions import Asked


class Front:
    """Deals sessions out to the routers in turn, as connections are dealt out; a session stays with its router.

    `decisions_s` is the time by `clock` of each call's first decision, lookups included. Two parts are done before the
    time is taken. A live gateway counts the streams' tokens as they come, so they are counted first. The prompt's
    blocks (of `block_tokens`) are hashed first too, because the models already have a time for hashing.
    """

    def __init__(
        self,
        gateways: Sequence[SimulatedGateway],
        clock: Callable[[], float],
        block_tokens: int,
    ) -> None:
        self.decisions_s: list[float] = []
        self._gateways = gateways
        self._clock = clock
        self._block_tokens = block_tokens
        self._sessions: dict[str, SimulatedGateway] = {}

    def place(self, name: str, session: str, call: Asked) -> AnyPlacement | HeldCall:
        """Have the session's router choose a worker, now or later."""
        gateway = self._sessions.setdefault(session, self._gateways[len(self._sessions) % len(self._gateways)])
        gateway.hear()
        call.prompt().chain(self._block_tokens)
        begun = self._clock()
        placed = gateway.place(name, session, call)
        self.decisions_s.append(self._clock() - begun)
        return placed

    def statistics(self) -> dict[str, int]:
        """Count the sessions dealt out and the decisions timed."""
        return {"sessions": len(self._sessions), "decisions": len(self.decisions_s)}

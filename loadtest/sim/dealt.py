"""Several gateways in front of one fleet, among which the clients are dealt out."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.sim.gateway import SimulatedGateway
from loadtest.sim.held import HeldCall
from loadtest.sim.placements import AnyPlacement
from loadtest.sim.sessions import Asked


class Dealt:
    """Each session stays with one gateway, as a client's connection does."""

    def __init__(self, gateways: Sequence[SimulatedGateway]) -> None:
        self._gateways = gateways
        self._sessions: dict[str, SimulatedGateway] = {}

    def place(self, name: str, session: str, call: Asked) -> AnyPlacement | HeldCall:
        """Place a call through its session's gateway."""
        gateway = self._sessions.setdefault(session, self._gateways[len(self._sessions) % len(self._gateways)])
        return gateway.place(name, session, call)

    def statistics(self) -> dict[str, int]:
        """Count the sessions dealt out."""
        return {"sessions": len(self._sessions)}

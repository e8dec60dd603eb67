"""What clients talk to in the lab: one router, or several that see each other late, with a note of each decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backends.engine.profile import Profile
from loadtest.lab.regret import Placed, prefill_s
from loadtest.sim.gateway import GatewayPlacement, Rejected, SimulatedGateway
from loadtest.sim.sessions import Asked
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker

Note = Callable[[str, Asked, GatewayPlacement], None]
"""Hears of each call that was placed, before its worker does."""


class Front:
    """Deals sessions out to the routers in turn, as connections are; each stays where it began.

    `decisions_s` is what each decision took by `clock`, lookups included; what streams have brought since the one
    before is caught up with first, as a live gateway does that token by token.
    """

    def __init__(self, gateways: Sequence[SimulatedGateway], clock: Callable[[], float], note: Note | None) -> None:
        self.decisions_s: list[float] = []
        self._gateways = gateways
        self._clock = clock
        self._note = note
        self._sessions: dict[str, SimulatedGateway] = {}

    def place(self, name: str, session: str, call: Asked) -> GatewayPlacement | Rejected:
        """Have the session's router choose a worker."""
        gateway = self._sessions.setdefault(session, self._gateways[len(self._sessions) % len(self._gateways)])
        gateway.hear()
        begun = self._clock()
        placed = gateway.place(name, session, call)
        self.decisions_s.append(self._clock() - begun)
        if self._note is not None and isinstance(placed, GatewayPlacement):
            self._note(name, call, placed)
        return placed

    def statistics(self) -> dict[str, int]:
        """Sessions dealt out, decisions noted."""
        return {"sessions": len(self._sessions), "decisions": len(self.decisions_s)}


class Notes:
    """Writes down what regret needs of each decision: what the prompt would have found on each worker then."""

    def __init__(
        self, time: VirtualTime, workers: Sequence[EngineWorker], speeds: Sequence[float], profile: Profile
    ) -> None:
        self.placed: list[Placed] = []
        self._time = time
        self._workers = {id(worker): number for number, worker in enumerate(workers)}
        self._engines = [worker.engine for worker in workers]
        self._speeds = speeds
        self._profile = profile

    def note(self, name: str, call: Asked, placement: GatewayPlacement) -> None:
        """A call has been placed."""
        tokens, profile = call.prompt_tokens, self._profile
        hashes = call.prompt().chain(profile.block_size)
        own = [
            prefill_s(profile, speed, tokens, engine.cached_tokens(hashes, tokens))
            for engine, speed in zip(self._engines, self._speeds, strict=True)
        ]
        self.placed.append(Placed(name, self._time.now_s, self._workers[id(placement.worker)], tuple(own)))

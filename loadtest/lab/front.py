"""The clients' side of the routers in the lab: one, or several that see each other late. It notes each decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backends.engine.engine import Engine
from backends.engine.profile import Profile
from loadtest.lab.regret import Placed, prefill_s
from loadtest.sim.gateway import GatewayPlacement, HeldCall, Rejected, SimulatedGateway
from loadtest.sim.sessions import Asked
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker

Note = Callable[[str, Asked, GatewayPlacement], None]
"""Hears of each call that was placed, before its worker does."""


class Front:
    """Deals sessions out to the routers in turn, as connections are; each stays where it began.

    `decisions_s` is what each call's first decision took by `clock`, lookups included. Before it, what streams have
    brought since the last one is caught up with, as a live gateway does that token by token, and the prompt's blocks
    (of `block_tokens`) are hashed: the time of that is modelled.
    """

    def __init__(
        self,
        gateways: Sequence[SimulatedGateway],
        clock: Callable[[], float],
        note: Note | None,
        block_tokens: int,
    ) -> None:
        self.decisions_s: list[float] = []
        self._gateways = gateways
        self._clock = clock
        self._note = note
        self._block_tokens = block_tokens
        self._sessions: dict[str, SimulatedGateway] = {}

    def place(self, name: str, session: str, call: Asked) -> GatewayPlacement | Rejected | HeldCall:
        """Have the session's router choose a worker, now or later."""
        gateway = self._sessions.setdefault(session, self._gateways[len(self._sessions) % len(self._gateways)])
        gateway.hear()
        call.prompt().chain(self._block_tokens)
        begun = self._clock()
        placed = gateway.place(name, session, call)
        self.decisions_s.append(self._clock() - begun)
        if self._note is not None:
            if isinstance(placed, HeldCall):
                placed.heard.append(lambda placement: self._noted(name, call, placement))
            else:
                self._noted(name, call, placed)
        return placed

    def _noted(self, name: str, call: Asked, placed: GatewayPlacement | Rejected) -> None:
        if self._note is not None and isinstance(placed, GatewayPlacement):
            self._note(name, call, placed)

    def statistics(self) -> dict[str, int]:
        """Sessions dealt out, decisions noted."""
        return {"sessions": len(self._sessions), "decisions": len(self.decisions_s)}


class Notes:
    """Writes down what regret needs of each decision: what the prompt would have found on each worker. `way_s` is the
    way to a worker."""

    def __init__(
        self,
        time: VirtualTime,
        workers: Sequence[EngineWorker],
        speeds: Sequence[float],
        profile: Profile,
        way_s: float,
    ) -> None:
        self.placed: list[Placed] = []
        self._time = time
        self._workers = {id(worker): number for number, worker in enumerate(workers)}
        self._finds = [Finds(worker.engine, way_s) for worker in workers]
        self._speeds = speeds
        self._profile = profile

    def note(self, name: str, call: Asked, placement: GatewayPlacement) -> None:
        """A call has been placed."""
        tokens, profile, now_s = call.prompt_tokens, self._profile, self._time.now_s
        hashes = call.prompt().chain(profile.block_size)
        own = [
            prefill_s(profile, speed, tokens, finds.tokens(hashes, tokens, now_s))
            for finds, speed in zip(self._finds, self._speeds, strict=True)
        ]
        chosen = self._workers[id(placement.worker)]
        self._finds[chosen].add(name, hashes, now_s)
        self.placed.append(Placed(name, now_s, chosen, tuple(own)))


class Finds:
    """What a prompt will find cached on one worker once that is through with all it was given before: what its cache
    holds, and the prompts that it has, or that are on their way to it, and has not answered yet."""

    def __init__(self, engine: Engine, way_s: float) -> None:
        self._engine = engine
        self._way_s = way_s
        self._coming: dict[str, tuple[float, Sequence[int]]] = {}

    def add(self, name: str, hashes: Sequence[int], now_s: float) -> None:
        """A prompt has been sent there."""
        self._coming[name] = (now_s + self._way_s, hashes)

    def tokens(self, hashes: Sequence[int], prompt_tokens: int, now_s: float) -> int:
        """Of a prompt with these block hashes."""
        engine, coming = self._engine, self._coming
        for name in [name for name, (there_s, _) in coming.items() if there_s < now_s]:
            if not engine.awaits_first_token(name):
                del coming[name]
        blocks = max([_common(hashes, others) for _, others in coming.values()], default=0)
        usable = min(blocks, (prompt_tokens - 1) // engine.block_size)
        return max(engine.cached_tokens(hashes, prompt_tokens), usable * engine.block_size)


def _common(hashes: Sequence[int], others: Sequence[int]) -> int:
    """Blocks with which both begin. The hashes are chained: where they differ once, they differ from there on."""
    low, high = 0, min(len(hashes), len(others))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if hashes[middle - 1] == others[middle - 1] else (low, middle - 1)
    return low

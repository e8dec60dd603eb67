"""The routers of the lab as clients see them: one, or several that see each other late. It notes each decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backends.engine.engine import Engine
from backends.engine.profile import Profile
from loadtest.lab.regret import Placed, prefill_s
from loadtest.sim.gateway import SimulatedGateway
from loadtest.sim.held import HeldCall
from loadtest.sim.placements import AnyPlacement, GatewayPlacement
from loadtest.sim.sessions import Asked
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker

Note = Callable[[str, Asked, GatewayPlacement], None]
"""Receives each placed call before its worker does."""


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
        note: Note | None,
        block_tokens: int,
    ) -> None:
        self.decisions_s: list[float] = []
        self._gateways = gateways
        self._clock = clock
        self._note = note
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
        if self._note is not None:
            if isinstance(placed, HeldCall):
                placed.heard.append(lambda placement: self._noted(name, call, placement))
            else:
                self._noted(name, call, placed)
        return placed

    def _noted(self, name: str, call: Asked, placed: AnyPlacement) -> None:
        if self._note is not None and isinstance(placed, GatewayPlacement):
            self._note(name, call, placed)

    def statistics(self) -> dict[str, int]:
        """Count the sessions dealt out and the decisions timed."""
        return {"sessions": len(self._sessions), "decisions": len(self.decisions_s)}


class Notes:
    """Records for regret what the prompt of each decision would have found on each worker.

    `way_s` is the delay from a router to a worker.
    """

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
        """Record a call that has been placed."""
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
    """Predicts what a prompt will find cached on one worker after all requests sent there before it.

    That is the content of the worker's cache, and the prompts without a first token, on the worker or on their way.
    """

    def __init__(self, engine: Engine, way_s: float) -> None:
        self._engine = engine
        self._way_s = way_s
        self._coming: dict[str, tuple[float, Sequence[int]]] = {}

    def add(self, name: str, hashes: Sequence[int], now_s: float) -> None:
        """Note a prompt that has been sent to the worker."""
        self._coming[name] = (now_s + self._way_s, hashes)

    def tokens(self, hashes: Sequence[int], prompt_tokens: int, now_s: float) -> int:
        """Return the tokens that a prompt with these block hashes will find cached."""
        engine, coming = self._engine, self._coming
        for name in [name for name, (there_s, _) in coming.items() if there_s < now_s]:
            if not engine.awaits_first_token(name):
                del coming[name]
        blocks = max([_common(hashes, others) for _, others in coming.values()], default=0)
        usable = min(blocks, (prompt_tokens - 1) // engine.block_size)
        return max(engine.cached_tokens(hashes, prompt_tokens), usable * engine.block_size)


def _common(hashes: Sequence[int], others: Sequence[int]) -> int:
    """Count the first blocks that are equal in both. Chained hashes that differ once differ from there on."""
    low, high = 0, min(len(hashes), len(others))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if hashes[middle - 1] == others[middle - 1] else (low, middle - 1)
    return low

"""The turns whose blocks decode workers keep for the prefill of the next turn. All clients continue in token ids."""

from __future__ import annotations

from typing import NamedTuple

from backends.engine.engine import EngineRequest, EngineRequestState
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker
from router.placement.endpoints import Candidate
from router.placement.kept_turns import GivenPrompt, KeptTurn
from router.residency.chain import TOKEN_BYTES


class KeptBlocks(NamedTuple):
    """The whole blocks of a turn that `worker` keeps under the name of its request. `last_hash` is that of the last."""

    worker: EngineWorker
    name: str
    tokens: int
    last_hash: int

    @property
    def there(self) -> bool:
        return self.worker.engine.kept_blocks(self.name) is not None

    def before(self, state: EngineRequestState) -> bool:
        """Return whether the prompt begins with them and has more."""
        size = self.worker.engine.block_size
        hashes, last = state.block_hashes, self.tokens // size - 1
        return self.tokens < state.prompt_tokens and last < len(hashes) and hashes[last] == self.last_hash


class KeptTurns:
    """What decode workers keep. They release it after `lease_s`; the gateway does not use it in the last `margin_s`."""

    def __init__(self, time: VirtualTime, lease_s: float, margin_s: float) -> None:
        self._time = time
        self._lease_s = lease_s
        self._margin_s = margin_s
        self._kept: dict[str, tuple[KeptTurn, KeptBlocks]] = {}
        """By the name of the turn's request."""

    def keep(self, state: EngineRequestState, owner: Candidate, worker: EngineWorker) -> None:
        """Remember a turn whose answer has ended, and release its blocks at the end of the lease."""
        size = worker.engine.block_size
        blocks = min(len(state.block_hashes), (state.prompt_tokens + state.output_tokens - 1) // size)
        self._time.after(self._lease_s, self._end, worker, state.id)
        if not blocks:
            return
        ids = bytes(TOKEN_BYTES * blocks * size)  # which ids they are is known by the hash
        prompt, asked = GivenPrompt(None, b"", ids), min(state.prompt_tokens, blocks * size)
        turn = KeptTurn(prompt, asked, b"", owner, self._time.now_s + self._lease_s - self._margin_s)
        self._kept[state.id] = turn, KeptBlocks(worker, state.id, blocks * size, state.block_hashes[blocks - 1])

    def extended_by(self, request: EngineRequest, block_size: int) -> list[KeptTurn]:
        """Return the turns that the request's prompt extends, the longest first."""
        if not self._kept:
            return []
        state = EngineRequestState(request, block_size, self._time.now_s)
        state.hash_blocks()
        found = [turn for turn, blocks in self._kept.values() if blocks.before(state)]
        return sorted(found, key=lambda turn: turn.prompt.tokens, reverse=True)

    def take(self, turn: KeptTurn) -> KeptBlocks:
        (name,) = [name for name, (one, _) in self._kept.items() if one is turn]
        return self._kept.pop(name)[1]

    def _end(self, worker: EngineWorker, name: str) -> None:
        self._kept.pop(name, None)
        worker.let_go(name)

"""Placements on workers whose cache is modelled: each process stores those of all others in its own models.

Workers whose KV events describe their cache need none of it, because each replica hears the events itself.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from policies.view import WorkerId
from router.limits.table import key_of
from router.replicas.messages import MOST_BLOCKS, MOST_MESSAGE_BLOCKS, MOST_PLACED, MOST_STEPS, Placed
from router.residency.view import PlacedBlocks

MOST_WAITING_BLOCKS = 1_000_000
"""Blocks that wait to be sent. Beyond it the oldest placements are dropped; answers correct the others' models."""
_MESSAGE_BLOCKS = 131_072
WHOLE_S = 30.0
"""For this time after a process was first heard, whole prompts are sent: it has not heard of their beginnings."""
_HASH_BYTES = 8


class CacheModels(Protocol):
    """The part of `router.residency.residency_map.ResidencyMap` that placements use."""

    on_placed: list[Callable[[PlacedBlocks], None]]

    @property
    def models(self) -> bool: ...
    @property
    def workers(self) -> Iterable[WorkerId]: ...
    def placed_elsewhere(
        self, worker: WorkerId, block_size: int, steps: Sequence[int], depth: int, blocks: Sequence[int]
    ) -> bool: ...


class FleetPlacements:
    def __init__(self, models: CacheModels) -> None:
        self._models = models
        self._workers: dict[int, WorkerId] = {}
        self._waiting: deque[Placed] = deque()
        self._waiting_blocks = 0
        self._whole = False
        self._whole_until_s = 0.0
        self.dropped = self.unplaced = 0
        models.on_placed.append(self._placed)

    @property
    def needed(self) -> bool:
        """Whether the cache of any worker is modelled."""
        return self._models.models

    def _placed(self, placed: PlacedBlocks) -> None:
        steps, depth = placed.steps, placed.depth
        if self._whole or len(steps) > MOST_STEPS:
            steps, depth = array("Q"), 0
        blocks = array("Q", placed.chain[depth : depth + MOST_BLOCKS])
        row = Placed(key_of(placed.worker), placed.block_size, depth, steps.tobytes(), blocks.tobytes())
        self._waiting.append(row)
        self._waiting_blocks += len(blocks)
        while self._waiting_blocks > MOST_WAITING_BLOCKS:
            self._waiting_blocks -= _blocks(self._waiting.popleft())
            self.dropped += 1

    def out(self, now_s: float) -> list[Placed]:
        """Return what fits into the next message."""
        self._whole = now_s < self._whole_until_s
        sent: list[Placed] = []
        blocks = 0
        while self._waiting and len(sent) < MOST_PLACED and blocks < _MESSAGE_BLOCKS:
            sent.append(self._waiting.popleft())
            blocks += _blocks(sent[-1])
        self._waiting_blocks -= blocks
        return sent

    def heard(self, placements: Iterable[Placed], now_s: float, *, new: bool) -> None:
        """Take in the placements of another process. `new`: it was not heard before."""
        if new:
            self._whole_until_s = now_s + WHOLE_S
        looked = False
        blocks = 0
        for placed in placements:
            blocks += _blocks(placed)
            if blocks > MOST_MESSAGE_BLOCKS:
                self.unplaced += 1
                continue
            worker = self._workers.get(placed.key)
            if worker is None and not looked:
                looked = True
                self._workers = {key_of(each): each for each in self._models.workers}
                worker = self._workers.get(placed.key)
            if worker is None or not self._store(worker, placed):
                self.unplaced += 1

    def _store(self, worker: WorkerId, placed: Placed) -> bool:
        if len(placed.steps) % _HASH_BYTES or len(placed.hashes) % _HASH_BYTES:
            return False
        steps, blocks = array("Q", placed.steps), array("Q", placed.hashes)
        if not blocks or bool(placed.depth) != bool(steps):
            return False
        return self._models.placed_elsewhere(worker, placed.block_size, steps, placed.depth, blocks)


def _blocks(placed: Placed) -> int:
    return len(placed.hashes) // _HASH_BYTES

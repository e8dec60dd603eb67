"""The host memory of one worker, as vLLM's OffloadingConnector fills it: a copy of each block that the GPU stores."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from backends.engine.events import BlocksCached, BlocksEvicted, CacheEvent


class HostBlocks:
    """The blocks in host memory; those used longest ago make room."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: OrderedDict[int, None] = OrderedDict()

    def copy(self, events: Iterable[CacheEvent]) -> list[CacheEvent]:
        """Copy the blocks that the engine has stored. Return the events of host memory."""
        made: list[CacheEvent] = []
        for event in events:
            if isinstance(event, BlocksCached):
                for index, block_hash in enumerate(event.hashes):
                    if block_hash in self._held:
                        self._held.move_to_end(block_hash)
                    else:
                        self._held[block_hash] = None
                        made.append(_one(event, index))
        while len(self._held) > self._capacity:
            made.append(BlocksEvicted((self._held.popitem(last=False)[0],)))
        return made

    def prefix(self, hashes: Sequence[int]) -> int:
        for number, block_hash in enumerate(hashes):
            if block_hash not in self._held:
                return number
        return len(hashes)

    def __len__(self) -> int:
        return len(self._held)


def _one(run: BlocksCached, index: int) -> BlocksCached:
    """Return the event of one block of a run, as vLLM announces blocks in host memory."""
    size = run.block_size
    return BlocksCached(
        hashes=run.hashes[index : index + 1],
        parent=run.hashes[index - 1] if index else run.parent,
        token_ids=run.token_ids[index * size : (index + 1) * size],
        block_size=size,
        lora_name=run.lora_name,
        extra_keys=run.extra_keys[index : index + 1],
    )

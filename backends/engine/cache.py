from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from backends.engine.events import BlocksCached, BlocksEvicted, CacheCleared, CacheEvent


class BlockCache:
    """Physical blocks, their references, and the hashes they hold. Block ids are small ints.

    The rules equal those of vLLM 0.33.0's block pool. A block with references cannot be evicted. A free block keeps its
    content; the block that was freed first is reused first. Within a released sequence the tail is reused first, and
    blocks that never filled are reused before all others. Equal content may be in several blocks, each of which is
    announced when it fills and when it is evicted. Block 0 is never given out (vLLM's null block), so `num_blocks` - 1
    are usable.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks is {num_blocks}; at least 2 are needed, of which one is never used")
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; it must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._references = [0] * num_blocks
        self._hashes: list[int | None] = [None] * num_blocks
        self._copies: dict[int, int | dict[int, None]] = {}  # a dict only for several copies, to save memory
        self._cached = 0
        self._events: list[CacheEvent] = []
        self._evictions = 0

    @property
    def usable_blocks(self) -> int:
        return self.num_blocks - 1

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of usable blocks with references, 0 to 1."""
        return 1.0 - len(self._free) / self.usable_blocks

    def match(self, hashes: Sequence[int], limit: int) -> list[int]:
        """Return the blocks of the longest cached prefix of `hashes`, at most `limit` of them. Takes no references."""
        copies = self._copies
        found: list[int] = []
        for block_hash in hashes[:limit]:
            holders = copies.get(block_hash)
            if holders is None:
                break
            found.append(holders if isinstance(holders, int) else next(iter(holders)))
        return found

    def fits(self, matched: Sequence[int], new_blocks: int) -> bool:
        """Return whether `new_blocks` can be allocated after the matched blocks are taken. Matched blocks may be free
        themselves.
        """
        references = self._references
        return new_blocks + sum(1 for block in matched if not references[block]) <= len(self._free)

    def take(self, matched: Sequence[int]) -> None:
        references = self._references
        for block in matched:
            if not references[block]:
                del self._free[block]
            references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks for new content and evict their old content. Call `fits` first."""
        free = self._free
        references = self._references
        blocks: list[int] = []
        for _ in range(count):
            block, _none = free.popitem(last=False)
            references[block] = 1
            if self._hashes[block] is not None:
                self._evict(block)
            blocks.append(block)
        return blocks

    def store(self, blocks: Sequence[int], run: BlocksCached) -> None:
        """Make newly full blocks reusable under the hashes of `run`, and announce them."""
        for block, block_hash in zip(blocks, run.hashes, strict=True):
            self._hashes[block] = block_hash
            holders = self._copies.setdefault(block_hash, block)
            if isinstance(holders, dict):
                holders[block] = None
            elif holders != block:
                self._copies[block_hash] = {holders: None, block: None}
        self._cached += len(blocks)
        self._events.append(run)

    def announce(self, run: BlocksCached) -> None:
        self._events.append(run)

    def release(self, blocks: Sequence[int]) -> None:
        references = self._references
        free = self._free
        unfilled: list[int] = []
        for block in reversed(blocks):
            references[block] -= 1
            if references[block]:
                continue
            free[block] = None
            if self._hashes[block] is None:
                unfilled.append(block)
        for block in reversed(unfilled):
            free.move_to_end(block, last=False)

    def reset(self) -> bool:
        """Forget all content; return False without effect while any block has references."""
        if self.free_blocks != self.usable_blocks:
            return False
        self._hashes = [None] * self.num_blocks
        self._copies.clear()
        self._cached = 0
        self._events.append(CacheCleared())
        return True

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def take_events(self) -> list[CacheEvent]:
        events = self._events
        if events:
            self._events = []
            return events
        return []

    def statistics(self) -> dict[str, int | float]:
        """Return sizes in blocks; `cached_blocks` counts physical copies, `evictions` is cumulative."""
        return {
            "num_blocks": self.num_blocks,
            "free_blocks": self.free_blocks,
            "cached_blocks": self._cached,
            "kv_usage": self.usage,
            "evictions": self._evictions,
        }

    def _evict(self, block: int) -> None:
        block_hash = self._hashes[block]
        if block_hash is None:
            return
        self._hashes[block] = None
        holders = self._copies[block_hash]
        if isinstance(holders, dict):
            del holders[block]
        if not holders or isinstance(holders, int):
            del self._copies[block_hash]
        self._cached -= 1
        self._evictions += 1
        self._events.append(BlocksEvicted((block_hash,)))

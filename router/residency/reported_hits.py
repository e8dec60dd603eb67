"""Blocks that a worker has said it found, where its events cannot have told of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from router.residency.block_copies import BlockCopies, TierCopies
from router.residency.blocks import KEY_MASK

_GROUP = -1
"""Cache group of their shelf: no publisher numbers one so."""


class ReportedHits:
    """Copies known by ``cached_tokens`` alone, on a shelf of their own, least recently reported first.

    The engine's names of these blocks are not known, so most removals pass them by. They go when a report says that
    less was found, when an event announces them (its removal will be told then), when an event removes one whose name
    was learned since, or when there is no room left for them. `clock` counts reports.
    """

    __slots__ = ("_block_copies", "_engines", "_names", "_seen", "clock")

    def __init__(self, block_copies: BlockCopies) -> None:
        self._block_copies = block_copies
        self._seen: dict[int, int] = {}
        """Block hash -> the report that last confirmed it."""
        self._names: dict[int, int] = {}
        """Engine key -> block hash, where that was learned."""
        self._engines: dict[int, int] = {}
        """The same the other way round."""
        self.clock = 0

    def __len__(self) -> int:
        return len(self._seen)

    def __contains__(self, block_hash: int) -> bool:
        return block_hash in self._seen

    def confirm(self, chain: Sequence[int]) -> None:
        """All of `chain` was found: take in what is not held yet. Its tail will be the first to go."""
        tier_copies = self._tier_copies()
        if tier_copies is None:
            return
        index, bit = self._block_copies.index, self._block_copies.bit
        for block_hash in reversed(chain):
            if self._seen.pop(block_hash, None) is None:
                if index.holders(block_hash) & bit:
                    continue
                self._block_copies.store(tier_copies, (block_hash,), (block_hash & KEY_MASK,), new_copies=False)
            self._seen[block_hash] = self.clock

    def deny(self, chain: Iterable[int], since: int) -> None:
        """None of `chain` was found: forget what no report after `since` has confirmed."""
        for block_hash in chain:
            if self._seen.get(block_hash, since + 1) <= since:
                self._drop(block_hash)

    def supersede(self, hashes: Iterable[int]) -> None:
        """Events announced these."""
        for block_hash in hashes:
            if block_hash in self._seen:
                self._drop(block_hash)

    def name(self, engine: int, block_hash: int) -> None:
        """The engine calls the block so."""
        if block_hash in self._seen and block_hash not in self._engines:
            self._names[engine] = block_hash
            self._engines[block_hash] = engine

    def named(self, engine: int) -> int | None:
        """The block that the engine calls so."""
        return self._names.get(engine)

    def remove(self, engines: Sequence[int], departed: array[int]) -> list[int]:
        """Removals of blocks that events did not announce; returns those not known here either.

        `departed` gets the hashes of the others.
        """
        if not self._names:
            return list(engines)
        missing = []
        for engine in engines:
            block_hash = self._names.get(engine)
            if block_hash is None:
                missing.append(engine)
            else:
                self._drop(block_hash)
                departed.append(block_hash)
        return missing

    def bound(self, blocks: int) -> None:
        """Keep no more than `blocks`."""
        while len(self._seen) > blocks:
            self._drop(next(iter(self._seen)))

    def clear(self) -> None:
        """The shelf is gone already."""
        self._seen.clear()
        self._names.clear()
        self._engines.clear()

    def carry_over(self) -> None:
        """The shelf is gone, but not for any reason that concerns these: put them up again."""
        seen = dict(self._seen)
        self.clear()
        self.confirm(list(seen)[::-1])
        self._seen = seen

    def _tier_copies(self) -> TierCopies | None:
        return self._block_copies.tier_copies(None, _GROUP)

    def _drop(self, block_hash: int) -> None:
        del self._seen[block_hash]
        tier_copies = self._tier_copies()
        if tier_copies is not None:
            self._block_copies.remove(tier_copies, (block_hash & KEY_MASK,))
        engine = self._engines.pop(block_hash, None)
        if engine is not None:
            del self._names[engine]

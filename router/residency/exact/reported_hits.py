"""Blocks that a worker reported as found in its cache, but did not announce by events."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from router.residency.exact.block_copies import BlockCopies, TierCopies
from router.residency.exact.blocks import KEY_MASK

_GROUP = -1
"""Cache group of the tier for these blocks. No publisher uses this number."""


class ReportedHits:
    """Copies known from ``cached_tokens`` alone, in a tier of their own, least recently reported first.

    The engine's names of these blocks are not known, so most removal events do not match them. A block leaves when a
    report finds less or an event announces it. It also leaves when an event removes it by a name learned since, or the
    capacity is used up. `clock` counts reports.
    """

    def __init__(self, block_copies: BlockCopies) -> None:
        self._block_copies = block_copies
        self._seen: dict[int, int] = {}
        """Block hash -> the report that confirmed it last."""
        self._names: dict[int, int] = {}
        """Engine key -> block hash, if it was learned."""
        self._engines: dict[int, int] = {}
        """Block hash -> engine key, the reverse of `_names`."""
        self.clock = 0

    def __len__(self) -> int:
        return len(self._seen)

    def __iter__(self) -> Iterator[int]:
        return iter(self._seen)

    def __contains__(self, block_hash: int) -> bool:
        return block_hash in self._seen

    def confirm(self, chain: Sequence[int]) -> None:
        """Store the blocks of `chain`, all of which were found. The tail of the chain is evicted first."""
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
        """Forget the blocks of `chain`, none of which were found, unless a report after `since` confirmed them."""
        for block_hash in chain:
            if self._seen.get(block_hash, since + 1) <= since:
                self._drop(block_hash)

    def supersede(self, hashes: Iterable[int]) -> None:
        for block_hash in hashes:
            if block_hash in self._seen:
                self._drop(block_hash)

    def name(self, engine: int, block_hash: int) -> None:
        if block_hash in self._seen and block_hash not in self._engines:
            self._names[engine] = block_hash
            self._engines[block_hash] = engine

    def named(self, engine: int) -> int | None:
        return self._names.get(engine)

    def remove(self, engines: Sequence[int], departed: array[int]) -> list[int]:
        """Remove blocks by their engine keys; return the keys that are not known here either.

        Hashes of the removed blocks are appended to `departed`.
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
        # One walk: to find the first key again after each removal takes seconds for 60,000 blocks.
        for block_hash in list(islice(self._seen, max(0, len(self._seen) - blocks))):
            self._drop(block_hash)

    def clear(self) -> None:
        """Forget all blocks, after the view has dropped their tier."""
        self._seen.clear()
        self._names.clear()
        self._engines.clear()

    def carry_over(self) -> None:
        """Store all blocks again, after the view has dropped their tier for an unrelated reason."""
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

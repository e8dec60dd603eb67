"""One view's physical copies: engine hash -> row of the index, counted per medium and cache group.

vLLM does not de-duplicate: one hash may sit in several blocks, each announced when it is filled and each removed when
it is evicted. A block counts as held until its last copy is gone.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain, islice

from router.residency.blocks import KEY_MASK, BlockIndex

MEDIA_KEPT = 8
"""Distinct (medium, group) pairs tracked per view; vLLM knows three media and a handful of groups."""

LOWER_TIER_BLOCKS = 1_048_576
"""Blocks tracked per slower medium and view: some connectors announce stores and never removals (LMCache#5076)."""


def engine_keys(hashes: Sequence[int | bytes]) -> list[int]:
    """Engine hashes as keys; bytes count by their last eight, which is how vLLM makes ints of them."""
    try:
        return [value & KEY_MASK for value in hashes]  # type: ignore[operator]
    except TypeError:
        return [engine_key(value) for value in hashes]


def engine_key(value: int | bytes) -> int:
    """One engine hash as a key."""
    return (value if isinstance(value, int) else int.from_bytes(value[-8:], "big")) & KEY_MASK


class TierCopies:
    """The copies in one medium (None: the GPU) and cache group."""

    __slots__ = ("extra", "held", "medium")

    def __init__(self, medium: str | None) -> None:
        self.medium = medium
        self.held: dict[int, int] = {}
        """Engine key -> row, in the order they were first stored."""
        self.extra: dict[int, int] = {}
        """Engine key -> copies beyond the first, where there are any."""


class BlockCopies:
    """All shelves of one view, and its bit in the index."""

    __slots__ = ("_doubled", "bit", "index", "tiers")

    def __init__(self, index: BlockIndex) -> None:
        self.index = index
        self.bit = index.take_bit()
        self.tiers: dict[tuple[str | None, int], TierCopies] = {}
        self._doubled: dict[str | None, dict[int, int]] = {None: {}}
        """Medium -> row -> engine keys beyond the first that stand for the same block."""

    def tier_copies(self, medium: str | None, group: int) -> TierCopies | None:
        """The shelf, made when it is new; None when there are too many to be true."""
        tier_copies = self.tiers.get((medium, group))
        if tier_copies is None and len(self.tiers) < MEDIA_KEPT:
            tier_copies = self.tiers[medium, group] = TierCopies(medium)
            self._doubled.setdefault(medium, {})
        return tier_copies

    def hash_of(self, engine: int, tier_copies: TierCopies) -> int | None:
        """Block hash behind an engine key, looked for on `tier_copies` first."""
        row = tier_copies.held.get(engine)
        if row is None:
            row = next((other.held[engine] for other in self.tiers.values() if engine in other.held), None)
        return None if row is None else self.index.hashes[row]

    def store(
        self, tier_copies: TierCopies, hashes: Iterable[int], engines: Iterable[int], *, new_copies: bool
    ) -> None:
        """Blocks were announced. Those known already gain a copy, unless `new_copies` says it is a re-announcement."""
        if tier_copies.medium is not None:
            self._store_below(tier_copies, hashes, engines, new_copies)
            return
        index, bit, held, doubled = self.index, self.bit, tier_copies.held, self._doubled[None]
        rows, masks, hash_of, free, shared = index.rows, index.masks, index.hashes, index.free, index.shared
        for block_hash, engine in zip(hashes, engines, strict=False):
            if engine in held:
                if new_copies:
                    tier_copies.extra[engine] = tier_copies.extra.get(engine, 0) + 1
                continue
            key = block_hash & KEY_MASK
            row = rows.get(key)
            if row is None:
                if free:
                    row = free.pop()
                    hash_of[row] = block_hash
                    masks[row] = bit
                else:
                    row = len(masks)
                    masks.append(bit)
                    hash_of.append(block_hash)
                rows[key] = row
            else:
                mask = masks[row]
                if mask & bit:
                    doubled[row] = doubled.get(row, 0) + 1
                else:
                    mask |= bit
                    masks[row] = shared.get(mask) or index.intern(mask)
            held[engine] = row

    def _store_below(
        self, tier_copies: TierCopies, hashes: Iterable[int], engines: Iterable[int], new_copies: bool
    ) -> None:
        index, bit, held, medium = self.index, self.bit, tier_copies.held, tier_copies.medium
        assert medium is not None
        doubled = self._doubled[medium]
        for block_hash, engine in zip(hashes, engines, strict=False):
            if engine in held:
                if new_copies:
                    tier_copies.extra[engine] = tier_copies.extra.get(engine, 0) + 1
                continue
            row = index.row_of(block_hash)
            if index.lower.get(medium, {}).get(row, 0) & bit:
                doubled[row] = doubled.get(row, 0) + 1
            else:
                index.hold(row, bit, medium)
            held[engine] = row

    def remove(self, tier_copies: TierCopies, engines: Iterable[int], departed: array[int] | None = None) -> list[int]:
        """One copy of each went; returns the keys that were not held.

        `departed` gets the hashes of blocks that are not in this medium any more.
        """
        index, bit, held, extra, medium = self.index, self.bit, tier_copies.held, tier_copies.extra, tier_copies.medium
        rows, masks, hash_of, doubled = index.rows, index.masks, index.hashes, self._doubled[medium]
        missing: list[int] = []
        for engine in engines:
            if extra and engine in extra:
                _decrement(extra, engine)
                continue
            row = held.pop(engine, None)
            if row is None:
                missing.append(engine)
            elif doubled and row in doubled:
                _decrement(doubled, row)
            elif medium is None and not index.lower and masks[row] == bit:
                if departed is not None:
                    departed.append(hash_of[row])
                masks[row] = 0
                del rows[hash_of[row] & KEY_MASK]
                index.free.append(row)
            else:
                if departed is not None:
                    departed.append(hash_of[row])
                index.unhold(row, bit, medium)
        return missing

    def thin(self, hashes: Iterable[int]) -> None:
        """Keep one copy of each of these blocks, where the GPU was thought to hold more."""
        rows = {self.index.rows.get(block_hash & KEY_MASK) for block_hash in hashes}
        for (medium, _), tier_copies in self.tiers.items():
            if medium is None:
                for engine in [engine for engine in tier_copies.extra if tier_copies.held.get(engine) in rows]:
                    del tier_copies.extra[engine]

    def discard_oldest(self, tier_copies: TierCopies, blocks: int) -> None:
        """Forget the `blocks` first stored, all copies of each."""
        for engine in list(islice(tier_copies.held, blocks)):
            tier_copies.extra.pop(engine, None)
            self.remove(tier_copies, (engine,))

    def clear_fastest(self) -> None:
        """The GPU pool was reset; slower tiers stay."""
        below = {place: tier_copies for place, tier_copies in self.tiers.items() if place[0] is not None}
        if not below:
            self.clear()
            return
        for place, tier_copies in self.tiers.items():
            if place[0] is None:
                tier_copies.extra.clear()
                self.remove(tier_copies, list(tier_copies.held))
        self.tiers = below

    def clear(self) -> None:
        """Forget everything, at once for the caller: a fresh bit takes over, the old one is swept later."""
        self.give_up()
        self.bit = self.index.take_bit()

    def give_up(self) -> None:
        """Leave the index."""
        self.index.drop(self.bit, chain.from_iterable(tier_copies.held.values() for tier_copies in self.tiers.values()))
        self.tiers = {}
        self._doubled = {None: {}}

    @property
    def blocks(self) -> int:
        """Distinct blocks in the fastest tier, engine keys counted."""
        return sum(len(tier_copies.held) for (medium, _), tier_copies in self.tiers.items() if medium is None)

    def statistics(self) -> dict[str, int]:
        """Sizes."""
        return {
            "blocks": self.blocks,
            "blocks_in_slower_tiers": sum(len(s.held) for (medium, _), s in self.tiers.items() if medium is not None),
            "copies_beyond_the_first": sum(sum(tier_copies.extra.values()) for tier_copies in self.tiers.values()),
        }


def _decrement(counts: dict[int, int], key: int) -> None:
    if counts[key] == 1:
        del counts[key]
    else:
        counts[key] -= 1

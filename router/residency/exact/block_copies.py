"""Physical copies of blocks in one view: engine hash -> row of the index, counted per medium and cache group."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain, islice

from router.residency.exact.blocks import KEY_MASK, BlockIndex

MEDIA_KEPT = 8
"""Distinct (medium, group) pairs tracked per view. vLLM has three media and a handful of groups."""

LOWER_TIER_BLOCKS = 1_048_576
"""Blocks tracked per slower medium and view. Some connectors announce stores and never removals (LMCache#5076)."""


def engine_keys(hashes: Sequence[int | bytes]) -> list[int]:
    """Return engine hashes as integer keys. Bytes count by their last eight, as when vLLM converts them to integers."""
    try:
        return [value & KEY_MASK for value in hashes]  # type: ignore[operator]
    except TypeError:
        return [engine_key(value) for value in hashes]


def engine_key(value: int | bytes) -> int:
    return (value if isinstance(value, int) else int.from_bytes(value[-8:], "big")) & KEY_MASK


class TierCopies:
    """The copies in one medium (None is the GPU) and one cache group."""

    __slots__ = ("extra", "held", "medium", "skipped")

    def __init__(self, medium: str | None) -> None:
        self.medium = medium
        self.held: dict[int, int] = {}
        """Engine key -> row, in the order in which the blocks were first stored."""
        self.extra: dict[int, int] = {}
        """Engine key -> number of copies beyond the first; a key with one copy has no entry."""
        self.skipped = 0
        """Announced blocks that could not be named (`stored_events.store_by_hash`)."""


class BlockCopies:
    """All tiers of one view, and the view's bit in the index."""

    def __init__(self, index: BlockIndex) -> None:
        self.index = index
        self.bit = index.take_bit()
        self.tiers: dict[tuple[str | None, int], TierCopies] = {}
        self._doubled: dict[str | None, dict[int, int]] = {None: {}}
        """Medium -> row -> engine keys beyond the first for the same block."""

    def tier_copies(self, medium: str | None, group: int) -> TierCopies | None:
        """Return the copies of a tier, created on first use; None beyond `MEDIA_KEPT` tiers, which no worker has."""
        tier_copies = self.tiers.get((medium, group))
        if tier_copies is None and len(self.tiers) < MEDIA_KEPT:
            tier_copies = self.tiers[medium, group] = TierCopies(medium)
            self._doubled.setdefault(medium, {})
        return tier_copies

    def hash_of(self, engine: int, tier_copies: TierCopies) -> int | None:
        row = tier_copies.held.get(engine)
        if row is None:
            row = next((other.held[engine] for other in self.tiers.values() if engine in other.held), None)
        return None if row is None else self.index.hashes[row]

    def store(
        self, tier_copies: TierCopies, hashes: Iterable[int], engines: Iterable[int], *, new_copies: bool
    ) -> None:
        """Store announced blocks. A known block gains a copy, unless this is a re-announcement (`new_copies` false)."""
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
        """Remove one copy of each block; return the keys that were not stored.

        Hashes of blocks that have left this medium are appended to `departed`.
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
        rows = {self.index.rows.get(block_hash & KEY_MASK) for block_hash in hashes}
        for (medium, _), tier_copies in self.tiers.items():
            if medium is None:
                for engine in [engine for engine in tier_copies.extra if tier_copies.held.get(engine) in rows]:
                    del tier_copies.extra[engine]

    def discard_oldest(self, tier_copies: TierCopies, blocks: int) -> None:
        for engine in list(islice(tier_copies.held, blocks)):
            tier_copies.extra.pop(engine, None)
            self.remove(tier_copies, (engine,))

    def clear_fastest(self) -> None:
        """Clear the GPU tier after a reset; slower tiers stay."""
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
        """Forget everything. A new bit takes over at once; the old bit is swept later."""
        self.give_up()
        self.bit = self.index.take_bit()

    def give_up(self) -> None:
        self.index.drop(self.bit, chain.from_iterable(tier_copies.held.values() for tier_copies in self.tiers.values()))
        self.tiers = {}
        self._doubled = {None: {}}

    @property
    def blocks(self) -> int:
        """Return the distinct blocks in the fastest tier, counted by engine key."""
        return sum(len(tier_copies.held) for (medium, _), tier_copies in self.tiers.items() if medium is None)

    def statistics(self) -> dict[str, int]:
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

"""The exact index: block hash -> which views hold it, per tier, as bitmasks.

The layout is sized for millions of blocks in plain Python. A block is a small int (its row). Keys are cut to 60 bits,
because a CPython int of two digits takes 32 bytes and one of three takes 48. Equal masks are one object.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import islice

KEY_MASK = (1 << 60) - 1
"""Part of a 64-bit hash used as a key. The chance of a wrong match among 1 M blocks is 1 in 2 million."""

_MASKS_KEPT = 65_536
"""Distinct masks remembered for sharing. Beyond that number, the table is emptied, which only costs memory."""


class BlockIndex:
    """Rows of blocks, each with the bits of the views that hold it.

    A *bit* is the place of one view in every mask. `drop` gives up a bit at once. `sweep` then clears the bit from the
    masks, a part at a time, and frees it for another view. Until then masks may show dropped bits, so a caller masks a
    result with the bits that it asks for.

    `block_copies.BlockCopies` reads and writes the fields without underscore; its loops are the hot path of this
    package.
    """

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        """Block hash (cut to `KEY_MASK`) -> row."""
        self.masks: list[int] = []
        """Row -> bits whose fastest tier (GPU) holds the block."""
        self.hashes = array("Q")
        """Row -> full block hash, the parent of the next block."""
        self.lower: dict[str, dict[int, int]] = {}
        """Slower medium -> row -> bits."""
        self.free: list[int] = []
        self.shared: dict[int, int] = {}
        self._free_bits: list[int] = []
        self._next_bit = 0
        self._dirty: deque[tuple[int, Iterator[int]]] = deque()

    def __len__(self) -> int:
        return len(self.rows)

    def take_bit(self) -> int:
        """Return a free bit, as ``1 << k``."""
        if self._free_bits:
            return self._free_bits.pop()
        self._next_bit += 1
        return 1 << (self._next_bit - 1)

    def drop(self, bit: int, rows: Iterable[int]) -> None:
        self._dirty.append((bit, iter(rows)))

    def sweep(self, limit: int) -> int:
        """Clear up to `limit` traces of dropped bits; return how many rows were visited."""
        done = 0
        while self._dirty and done < limit:
            bit, rows = self._dirty[0]
            part = list(islice(rows, limit - done))
            for row in part:
                self._forget(row, bit)
            done += len(part)
            if done < limit:
                self._dirty.popleft()
                self._free_bits.append(bit)
        return done

    def _forget(self, row: int, bit: int) -> None:
        """Clear `bit` from `row` in every tier. If the row was reused for another block, the bit is not set."""
        mask = self.masks[row]
        held = bool(mask & bit)
        if held:
            self.masks[row] = self.intern(mask ^ bit)
        for tier in self.lower.values():
            below = tier.get(row, 0)
            if below & bit:
                held = True
                self._set_lower(tier, row, below ^ bit)
        if held:
            self.release(row)

    def _set_lower(self, tier: dict[int, int], row: int, mask: int) -> None:
        if mask:
            tier[row] = self.intern(mask)
        else:
            tier.pop(row, None)

    def intern(self, mask: int) -> int:
        if len(self.shared) > _MASKS_KEPT:
            self.shared.clear()
        return self.shared.setdefault(mask, mask)

    def row_of(self, block_hash: int) -> int:
        key = block_hash & KEY_MASK
        row = self.rows.get(key)
        if row is not None:
            return row
        if self.free:
            row = self.free.pop()
            self.hashes[row] = block_hash
        else:
            row = len(self.masks)
            self.masks.append(0)
            self.hashes.append(block_hash)
        self.rows[key] = row
        return row

    def hold(self, row: int, bit: int, medium: str | None) -> None:
        """Set `bit` for a slower `medium`, or for the fastest tier if None."""
        if medium is None:
            self.masks[row] = self.intern(self.masks[row] | bit)
        else:
            tier = self.lower.setdefault(medium, {})
            tier[row] = self.intern(tier.get(row, 0) | bit)

    def unhold(self, row: int, bit: int, medium: str | None) -> None:
        """Clear `bit`; free the row once no view holds it in any tier."""
        if medium is None:
            self.masks[row] = self.intern(self.masks[row] & ~bit)
        else:
            tier = self.lower.get(medium, {})
            self._set_lower(tier, row, tier.get(row, 0) & ~bit)
        self.release(row)

    def release(self, row: int) -> None:
        if not self.masks[row] and not any(row in tier for tier in self.lower.values()):
            del self.rows[self.hashes[row] & KEY_MASK]
            self.free.append(row)

    def holders(self, block_hash: int) -> int:
        """Return the bits whose fastest tier holds the block (dropped bits may show)."""
        row = self.rows.get(block_hash & KEY_MASK)
        return 0 if row is None else self.masks[row]

    @property
    def tiered(self) -> bool:
        return bool(self.lower)

    def probe(self, chain: Sequence[int]) -> Callable[[int], int]:
        """Return a function from a position in `chain` to the bits of the views that hold the block on the GPU."""
        row_of, masks = self.rows.get, self.masks

        def probe(position: int) -> int:
            row = row_of(chain[position] & KEY_MASK)
            return 0 if row is None else masks[row]

        return probe

    def probe_below(self, chain: Sequence[int], media: Container[str]) -> Callable[[int], int]:
        """Return a function from a position in `chain` to the bits of the views that hold the block in the slower tiers
        `media`, whose names are upper case."""
        row_of = self.rows.get
        tiers = [tier.get for medium, tier in self.lower.items() if medium.upper() in media]

        def probe(position: int) -> int:
            row, bits = row_of(chain[position] & KEY_MASK), 0
            if row is not None:
                for tier in tiers:
                    bits |= tier(row, 0)
            return bits

        return probe

    def media(self, block_hash: int, bit: int) -> str | None:
        """Return the slower medium in which `bit` holds the block, if any."""
        row = self.rows.get(block_hash & KEY_MASK)
        if row is None:
            return None
        return next((medium for medium, tier in self.lower.items() if tier.get(row, 0) & bit), None)

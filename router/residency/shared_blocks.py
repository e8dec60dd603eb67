"""Which views hold a block, as a hash table in memory that several processes map: one writes it, the others read it.

The table is open-addressed with linear probing. A place has the key, and then the bits of the views in words of 8
bytes. A place whose key is 0 is free. A key stays until the table is made again, with bits of 0 once no view holds the
block, so a reader never misses a key because of a removal. Every word is written as a whole. A reader takes no lock: it
may see a change a moment before or after the rest of the same batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

WORD_BITS = 64
_WORD_BYTES = 8
_LEAST_PLACES = 4_096
_FILLED = 0.5
"""Share of used places at which the table is made again, four times as large as the blocks that it then holds."""


def table_bytes(places: int, words: int) -> int:
    """Return the size of a table with `words` words of bits at each place."""
    return places * _WORD_BYTES * (1 + words)


class SharedBlocks:
    """A reader of one table: `memory` with `places` (a power of two), and `words` words of bits at each."""

    __slots__ = ("_end", "_shift", "_stride", "_words")

    def __init__(self, memory: memoryview, places: int, words: int) -> None:
        self._words = memory[: table_bytes(places, words)].cast("Q")
        self._stride = 1 + words
        self._end = places * self._stride
        self._shift = WORD_BITS - (places.bit_length() - 1)

    def holders(self, block_hash: int) -> int:
        words, stride = self._words, self._stride
        at = (block_hash >> self._shift) * stride
        while (key := words[at]) != block_hash:
            if not key:
                return 0
            at += stride
            if at == self._end:
                at = 0
        if stride == 2:
            return words[at + 1]
        return int.from_bytes(words[at + 1 : at + stride].tobytes(), "little")


class SharedBlocksWriter:
    """The one writer of a table. `allocate` returns zeroed memory of a number of bytes.

    `on_table` is called with places and words when another table takes the place of the present one.
    """

    def __init__(self, allocate: Callable[[int], memoryview], on_table: Callable[[int, int], None]) -> None:
        self._allocate = allocate
        self._on_table = on_table
        self._used = 0
        self._make(np.zeros((0, 2), np.uint64), 0)

    def _make(self, held: Hashes, further: int) -> None:
        places = 1 << (max(_LEAST_PLACES, 4 * (len(held) + further)) - 1).bit_length()
        words = held.shape[1] - 1
        memory = self._allocate(table_bytes(places, words))
        self._table = np.frombuffer(memory, np.uint64, places * (1 + words)).reshape(places, 1 + words)
        self._keys = self._table[:, 0]
        self._shift = np.uint64(WORD_BITS - (places.bit_length() - 1))
        self._used = 0
        self._table[self._inserted(held[:, 0]), 1:] = held[:, 1:]
        self._on_table(places, words)

    def change(self, bit: int, departed: Hashes, arrived: Hashes) -> Hashes:
        """Clear view number `bit` from the blocks `departed`, then set it for `arrived`; return what is in both."""
        self.make_room(bit, len(arrived))
        word, value = self._table[:, 1 + bit // WORD_BITS], np.uint64(1 << bit % WORD_BITS)
        came = self._inserted(arrived)
        left = self._found(departed) if len(departed) else came[:0]
        known = left >= 0
        if not known.all():
            left, departed = left[known], departed[known]
        word[left] &= ~value
        word[came] |= value
        again: Hashes = departed[(word[left] & value) != 0]
        return again

    def clear(self, bit: int) -> None:
        """Clear view number `bit` from all blocks."""
        column = 1 + bit // WORD_BITS
        if column < self._table.shape[1]:
            self._table[:, column] &= ~np.uint64(1 << bit % WORD_BITS)

    def make_room(self, bit: int, further: int) -> None:
        """Make the table large enough for view number `bit` and this many further blocks.

        Raises:
            OSError: there is no room in memory (whatever `allocate` raises). The table is as before.
        """
        words = self._table.shape[1] - 1
        if bit < WORD_BITS * words and self._used + further <= _FILLED * len(self._keys):
            return
        held = self._table[self._table[:, 1:].any(axis=1)]
        while bit >= WORD_BITS * (held.shape[1] - 1):
            held = np.hstack([held, np.zeros_like(held[:, 1:])])
        self._make(held, further)

    def _inserted(self, hashes: Hashes) -> NDArray[np.int64]:
        """Return the place of each hash. Those without one get it."""
        keys, last = self._keys, len(self._keys) - 1
        places = (hashes >> self._shift).astype(np.int64)
        waiting: NDArray[np.int64] | slice = slice(None)
        while True:
            here, wanted = places[waiting], hashes[waiting]
            found = keys[here]
            free = np.flatnonzero(found == 0)
            if len(free):
                keys[here[free]] = wanted[free]  # of several for one place the last gets it
                found[free] = keys[here[free]]
                self._used += len(free)
            others = np.flatnonzero(found != wanted)
            if not len(others):
                return places
            waiting = others if isinstance(waiting, slice) else waiting[others]
            places[waiting] = (places[waiting] + 1) & last

    def _found(self, hashes: Hashes) -> NDArray[np.int64]:
        """Return the place of each hash, -1 where it has none."""
        keys, last = self._keys, len(self._keys) - 1
        places = (hashes >> self._shift).astype(np.int64)
        waiting = np.flatnonzero(keys[places] != hashes)
        while len(waiting):
            here = places[waiting]
            free = keys[here] == 0
            places[waiting[free]] = -1
            waiting = waiting[~free]
            places[waiting] = (places[waiting] + 1) & last
            waiting = waiting[keys[places[waiting]] != hashes[waiting]]
        return places

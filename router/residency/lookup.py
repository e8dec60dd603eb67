"""Longest cached prefixes of a prompt per slot, from the events' index or from the model of a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.residency.cache_view import CacheView, usable_chain
from router.residency.exact.blocks import BlockIndex
from router.residency.matching import each_bit, lengths
from router.residency.prompt import Prompt


class _Group:
    """Slots with one block size, looked up together. `closed` and `open_` are bits of the index."""

    __slots__ = ("closed", "open_", "slots")

    def __init__(self) -> None:
        self.closed = 0
        self.open_ = 0
        self.slots: dict[int, int] = {}
        """Slot by bit of the index."""


def resident_lengths(
    index: BlockIndex, prompt: Prompt, views: Mapping[int, CacheView]
) -> dict[int, dict[int, list[int]]]:
    """Return block size -> number of cached blocks of `prompt` -> slots with that number. Each slot occurs once."""
    found: dict[int, dict[int, list[int]]] = {}
    groups: dict[int, _Group] = {}
    chains: dict[int, tuple[Sequence[int], int]] = {}
    exact, tokens = prompt.exact, prompt.tokens
    for slot, view in views.items():
        block_size = view.block_size
        if view.modelled or not exact:
            if block_size not in chains:
                chains[block_size] = usable_chain(prompt, block_size)
                found.setdefault(block_size, {})
            chain, usable = chains[block_size]
            found[block_size].setdefault(view.modelled_blocks(chain, usable, tokens), []).append(slot)
            continue
        group = groups.get(block_size)
        if group is None:
            group = groups[block_size] = _Group()
        bit = view.bit
        group.slots[bit] = slot
        if view.closed:
            group.closed |= bit
        else:
            group.open_ |= bit
    for block_size, group in groups.items():
        chain, usable = usable_chain(prompt, block_size)
        by_length = found.setdefault(block_size, {})
        slots = group.slots
        for length, bits in lengths(index.probe(chain), usable, group.closed, group.open_):
            if bits:
                by_length.setdefault(length, []).extend([slots[bit] for bit in each_bit(bits)])
    return found


def by_tier(index: BlockIndex, chain: Sequence[int], start: int, usable: int, bit: int) -> dict[str, int]:
    """Return the blocks per tier of the longest prefix over all tiers. The first `start` blocks are known to be on the
    GPU."""
    found = {"GPU": start}
    for block_hash in chain[start:usable]:
        tier = "GPU" if index.holders(block_hash) & bit else index.media(block_hash, bit)
        if tier is None:
            break
        found[tier] = found.get(tier, 0) + 1
    return found

"""From a prompt and slots to lengths: events' index for some, the model of a cache for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.prefix.blocks import KEY_MASK, BlockIndex
from router.prefix.matching import Probe, each_bit, lengths
from router.prefix.prompt import Prompt
from router.prefix.slot import Slot, usable_chain


class _Group:
    """Slots looked up together: one block size. `closed` and `open_` are bits of the index."""

    __slots__ = ("closed", "open_", "slots")

    def __init__(self) -> None:
        self.closed = 0
        self.open_ = 0
        self.slots: dict[int, int] = {}
        """Bit of the index -> ``1 << slot``."""


def resident_lengths(index: BlockIndex, prompt: Prompt, views: Mapping[int, Slot]) -> dict[int, dict[int, int]]:
    """Block size -> blocks of `prompt` resident -> slots (as ``1 << slot``) that have so many; each slot once."""
    found: dict[int, dict[int, int]] = {}
    groups: dict[int, _Group] = {}
    for slot, view in views.items():
        if view.modelled or not prompt.exact:
            _put(found.setdefault(view.block_size, {}), view.modelled_length(prompt), 1 << slot)
            continue
        group = groups.get(view.block_size)
        if group is None:
            group = groups[view.block_size] = _Group()
        bit = view.bit
        group.slots[bit] = 1 << slot
        if view.closed:
            group.closed |= bit
        else:
            group.open_ |= bit
    for block_size, group in groups.items():
        chain, usable = usable_chain(prompt, block_size)
        by_length = found.setdefault(block_size, {})
        slots = group.slots
        for length, bits in lengths(_probe(index, chain), usable, group.closed, group.open_):
            for bit in each_bit(bits):
                by_length[length] = by_length.get(length, 0) | slots[bit]
    return found


def _put(by_length: dict[int, int], length: int, bits: int) -> None:
    by_length[length] = by_length.get(length, 0) | bits


def _probe(index: BlockIndex, chain: Sequence[int]) -> Probe:
    row_of, masks = index.rows.get, index.masks

    def probe(position: int) -> int:
        row = row_of(chain[position] & KEY_MASK)
        return 0 if row is None else masks[row]

    return probe


def by_tier(index: BlockIndex, chain: Sequence[int], start: int, usable: int, bit: int) -> dict[str, int]:
    """Blocks per tier of the longest prefix over all tiers, the first `start` known to be on the GPU."""
    found = {"GPU": start}
    for block_hash in chain[start:usable]:
        tier = "GPU" if index.holders(block_hash) & bit else index.media(block_hash, bit)
        if tier is None:
            break
        found[tier] = found.get(tier, 0) + 1
    return found

"""Cached tokens of a prompt on many slots at once, as arrays: one walk over the index for all exact caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.view import Residency
from router.residency.exact.blocks import BlockIndex
from router.residency.in_flight import ReservedBlocks
from router.residency.matching import each_bit, lengths
from router.residency.prompt import Prompt
from router.residency.view import Match
from router.residency.worker_cache import WorkerCache

Slots = NDArray[np.int64]


_FEW_BITS = 4
"""Bits up to which a loop costs less than an array of all bits."""


@dataclass(slots=True, eq=False)
class Matches:
    """The cached tokens of a prompt on several slots, in the order in which they were asked for.

    `tokens` counts blocks of requests placed there, `resident_tokens` does not. `by_tier` is by place, where it is
    known (`Match`).
    """

    tokens: NDArray[np.float64]
    resident_tokens: NDArray[np.float64]
    residency: Sequence[Residency]
    by_tier: Mapping[int, Mapping[str, int]]

    def at(self, place: int) -> Match:
        tokens = int(self.tokens[place])
        reserved_tokens = tokens - int(self.resident_tokens[place])
        return Match(tokens, reserved_tokens, self.residency[place], self.by_tier.get(place))

    def ordered(self) -> list[Match]:
        return [self.at(place) for place in range(len(self.tokens))]


def nothing_known(slots: int) -> Matches:
    """Return the matches of a prompt that no cache is asked for."""
    return Matches(np.zeros(slots), np.zeros(slots), [Residency.UNKNOWN] * slots, {})


class _SlotGroup:
    """The slots with one block size. `closed` and `open_` are bits of the index, `slot_of` is by position of a bit."""

    def __init__(self, caches: Mapping[int, WorkerCache]) -> None:
        self.closed = self.open_ = 0
        self.caches = list(caches.items())
        self.modelled = [(slot, cache) for slot, cache in self.caches if cache.modelled]
        self.slots = np.array(list(caches), np.int64)
        places: dict[int, int] = {}
        for slot, cache in self.caches:
            if cache.modelled:
                continue
            places[cache.bit.bit_length() - 1] = slot
            if cache.closed:
                self.closed |= cache.bit
            else:
                self.open_ |= cache.bit
        self._bytes = (max(places, default=0) + 8) // 8
        self.slot_of = np.zeros(8 * self._bytes, np.int64)
        for position, slot in places.items():
            self.slot_of[position] = slot

    def slots_with(self, bits: int) -> Slots:
        if bits.bit_count() <= _FEW_BITS:
            return np.array([self.slot_of[bit.bit_length() - 1] for bit in each_bit(bits)], np.int64)
        octets = np.frombuffer(bits.to_bytes(self._bytes, "little"), np.uint8)
        return self.slot_of[np.flatnonzero(np.unpackbits(octets, bitorder="little"))]


class SlotGroups:
    """All caches of a residency map, grouped by block size. Valid until `SharedCaches.changes` grows."""

    def __init__(self, caches: Mapping[int, WorkerCache]) -> None:
        self._caches = caches
        self._size = max(caches, default=0) + 1
        by_size: dict[int, dict[int, WorkerCache]] = {}
        for slot, cache in caches.items():
            by_size.setdefault(cache.block_size, {})[slot] = cache
        self._groups = {block_size: _SlotGroup(alike) for block_size, alike in by_size.items()}
        self._off = np.array([slot for slot, cache in caches.items() if cache.residency is Residency.OFF], np.int64)
        self._tiered = [slot for slot, cache in caches.items() if cache.slower_tiers]
        self._asked: tuple[Slots, NDArray[np.bool_], list[Residency]] | None = None
        """The slots of the last match, which of all slots they are, and their residency."""

    def match(self, index: BlockIndex, in_flight: ReservedBlocks, prompt: Prompt, slots: Slots) -> Matches:
        """Return the matches of `slots`. A slot that is not known has no tokens."""
        asked, residencies = self._asked_for(slots)
        if not prompt.exact:
            residencies = [
                Residency.APPROXIMATE if slot in self._caches and residency is not Residency.OFF else residency
                for slot, residency in zip(slots.tolist(), residencies, strict=True)
            ]
        tokens = np.zeros(len(asked), np.float64)
        resident_tokens = np.zeros(len(asked), np.float64)
        for block_size, group in self._groups.items():
            if len(self._groups) > 1 and not asked[group.slots].any():
                continue
            chain, usable = prompt.usable_chain(block_size)
            for blocks, here in _resident(index, group, prompt, chain, usable, asked):
                tokens[here] = resident_tokens[here] = blocks * block_size
                if in_flight.masks and blocks < usable:
                    self._add_reserved(in_flight, chain, blocks, usable, here, tokens, block_size)
        tokens[self._off] = resident_tokens[self._off] = 0.0
        tiered = index.tiered and self._tiered and prompt.exact
        tiers = self._tiers(index, prompt, slots, resident_tokens) if tiered else {}
        return Matches(tokens[slots], resident_tokens[slots], residencies, tiers)

    @staticmethod
    def _add_reserved(
        in_flight: ReservedBlocks,
        chain: Sequence[int],
        start: int,
        usable: int,
        here: Slots,
        tokens: NDArray[np.float64],
        block_size: int,
    ) -> None:
        """Extend the match of the slots `here`, which hold `start` blocks, by the reserved blocks that follow."""
        masks = in_flight.masks
        reserved = masks.get(chain[start], 0)
        if not reserved:
            return
        holding = set(here.tolist())
        going_on = sum([bit for bit in each_bit(reserved) if bit.bit_length() - 1 in holding])
        for end, bits in lengths(lambda position: masks.get(chain[position], 0), usable, going_on, 0, start):
            for bit in each_bit(bits):
                tokens[bit.bit_length() - 1] = end * block_size

    def _asked_for(self, slots: Slots) -> tuple[NDArray[np.bool_], list[Residency]]:
        if self._asked is None or self._asked[0] is not slots:
            asked = np.zeros(max(self._size, int(slots.max(initial=0)) + 1), np.bool_)
            asked[slots] = True
            caches = self._caches
            found = [caches[slot].residency if slot in caches else Residency.UNKNOWN for slot in slots.tolist()]
            self._asked = slots, asked, found
        return self._asked[1], self._asked[2]

    def _tiers(
        self, index: BlockIndex, prompt: Prompt, slots: Slots, resident_tokens: NDArray[np.float64]
    ) -> dict[int, dict[str, int]]:
        places = {slot: place for place, slot in enumerate(slots.tolist())}
        found = {}
        for slot in self._tiered:
            cache = self._caches[slot]
            if slot in places and cache.residency is not Residency.OFF:
                chain, usable = prompt.usable_chain(cache.block_size)
                start = int(resident_tokens[slot]) // cache.block_size
                blocks = _by_tier(index, chain, start, usable, cache.bit)
                found[places[slot]] = {tier: count * cache.block_size for tier, count in blocks.items()}
        return found


def _resident(
    index: BlockIndex, group: _SlotGroup, prompt: Prompt, chain: Sequence[int], usable: int, asked: NDArray[np.bool_]
) -> list[tuple[int, Slots]]:
    """Return numbers of cached blocks, each with the slots that have it."""
    found: list[tuple[int, Slots]] = []
    if prompt.exact and (group.closed or group.open_):
        ends = lengths(index.probe(chain), usable, group.closed, group.open_)
        found = [(blocks, group.slots_with(bits)) for blocks, bits in ends if bits]
    modelled = group.modelled if prompt.exact else group.caches
    if modelled:
        by_length: dict[int, list[int]] = {}
        wanted, tokens = asked.tolist(), prompt.tokens
        for slot, cache in modelled:
            if wanted[slot]:
                by_length.setdefault(cache.model.blocks(chain, usable, tokens), []).append(slot)
        found += [(blocks, np.array(here, np.int64)) for blocks, here in by_length.items()]
    return found


def _by_tier(index: BlockIndex, chain: Sequence[int], start: int, usable: int, bit: int) -> dict[str, int]:
    """Return the blocks per tier of the longest prefix over all tiers. The first `start` blocks are known to be on the
    GPU."""
    found = {"GPU": start}
    for block_hash in chain[start:usable]:
        tier = "GPU" if index.holders(block_hash) & bit else index.media(block_hash, bit)
        if tier is None:
            break
        found[tier] = found.get(tier, 0) + 1
    return found

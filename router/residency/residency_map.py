"""The cached tokens of a prompt on each worker, for the dispatcher."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import numpy as np

from policies.view import Residency, WorkerId
from router.residency.matching import each_bit, lengths
from router.residency.prompt import Prompt
from router.residency.shared_caches import SharedCaches
from router.residency.slot_groups import Matches, SlotGroups, Slots
from router.residency.view import Match
from router.residency.worker_cache import WorkerCache


class ResidencyMap:
    """One cache per slot: exact if the worker publishes KV events, else a model of its cache.

    A slot is a small int, unique among live candidates and reused after `remove`.

    Memory: an exact cache is bounded by the worker's cache (twice its tokens; `exact.FASTEST_TIER_BLOCKS` if not
    reported), slower tiers by `block_copies.LOWER_TIER_BLOCKS`, orphans by `orphans.ORPHAN_BYTES`, delayed batches by
    `sequence.PENDING_BYTES`. `approximate_bytes` bounds all models together.

    `on_settled` is called with a ticket's id once the reason of a pending difference is known; `on_placed` when a
    prompt is placed on a slot with a modelled cache, with the blocks that the model lacked.
    """

    def __init__(self, approximate_bytes: int = 134_217_728, relearn_blocks_per_s: int = 1_000) -> None:
        self._shared = SharedCaches(approximate_bytes, relearn_blocks_per_s)
        self._slots: dict[int, WorkerCache] = {}
        self._gone = WorkerCache(SharedCaches(0, 0), 0, WorkerId(""), 1, None, False, live=False)
        self.on_settled, self.on_placed = self._shared.on_settled, self._shared.on_placed
        self._groups: SlotGroups | None = None
        self._grouped_at = -1
        """Count of changes for which the groups were made."""
        self._asked: list[int] = []
        self._asked_slots = np.array([], np.int64)
        """The slots of the last `match`, as an array too: most matches ask for the same."""
        self._slot_of: dict[WorkerId, int] = {}

    def add(self, slot: int, worker: WorkerId, block_size: int, capacity_blocks: int | None, events: bool) -> None:
        """Start a cache. It is modelled if `events` is False (or the publisher is not known yet).

        Raises:
            ValueError: `block_size` is not positive.
        """
        if block_size < 1:
            raise ValueError(f"block_size {block_size} of {worker} is not positive")
        self.remove(slot)
        self._slots[slot] = WorkerCache(self._shared, slot, worker, block_size, capacity_blocks, events)
        self._slot_of[worker] = slot
        self._shared.changes += 1

    def slot(self, slot: int) -> WorkerCache:
        """Return the cache of a slot; for an unknown one, one that ignores all calls."""
        return self._slots.get(slot, self._gone)

    def remove(self, slot: int) -> None:
        cache = self._slots.pop(slot, None)
        if cache is None:
            return
        if self._slot_of.get(cache.worker) == slot:
            del self._slot_of[cache.worker]
        cache.leave()

    def match(self, prompt: Prompt, slots: Iterable[int]) -> dict[int, Match]:
        """Return the cached tokens of `prompt` on each of `slots`. An unknown slot has none and residency UNKNOWN."""
        asked = list(slots)
        if asked != self._asked:
            self._asked, self._asked_slots = asked, np.array(asked, np.int64)
        return dict(zip(asked, self.match_all(prompt, self._asked_slots).ordered(), strict=True))

    def match_all(self, prompt: Prompt, slots: Slots) -> Matches:
        shared = self._shared
        while shared.stale:
            self._slots[shared.stale.pop()].refresh()
        if self._groups is None or self._grouped_at != shared.changes:
            self._groups, self._grouped_at = SlotGroups(self._slots), shared.changes
        return self._groups.match(shared.index, shared.in_flight, prompt, slots)

    def held_below(self, prompt: Prompt, slots: Iterable[int], media: Container[str]) -> dict[int, int]:
        """Return the tokens of the longest prefix of `prompt` that each of `slots` holds in the slower tiers `media`.

        Names of tiers are upper case. Slots that hold nothing there are left out.
        """
        found: dict[int, int] = {}
        index = self._shared.index
        if not index.tiered or not prompt.exact:
            return found
        slots_by_size: dict[int, dict[int, int]] = {}
        for slot in slots:
            cache = self.slot(slot)
            if cache.stale:
                cache.refresh()
            if cache.slower_tiers and cache.residency is not Residency.OFF:
                slots_by_size.setdefault(cache.block_size, {})[cache.bit] = slot
        for block_size, slot_of in slots_by_size.items():
            chain, usable = prompt.usable_chain(block_size)
            for blocks, bits in lengths(index.probe_below(chain, media), usable, sum(slot_of), 0):
                if blocks:
                    found.update({slot_of[bit]: blocks * block_size for bit in each_bit(bits)})
        return found

    def placed_elsewhere(
        self, worker: WorkerId, block_size: int, steps: Sequence[int], depth: int, blocks: Sequence[int]
    ) -> bool:
        """Store blocks of a prompt that another router has placed (`ApproximateCache.placed`); False if that cannot be.

        A worker whose events describe its cache needs none of it.
        """
        cache = self.slot(self._slot_of.get(worker, -1))
        if not cache.live or cache.block_size != block_size:
            return False
        if not cache.modelled:
            return True
        return cache.model.placed(steps, depth, blocks)

    @property
    def workers(self) -> Iterable[WorkerId]:
        return self._slot_of.keys()

    @property
    def models(self) -> bool:
        return any(cache.modelled for cache in self._slots.values())

    def asks_again(self, slot: int, ticket_id: int, now_s: float) -> bool:
        return self.slot(slot).asks_again(ticket_id, now_s)

    def holders(self, block_hash: int) -> list[int]:
        """Return the slots whose worker holds a block on its GPU, as far as KV events say."""
        bits = self._shared.index.holders(block_hash)
        return [slot for slot, cache in self._slots.items() if cache.bit & bits]

    def statistics(self) -> dict[str, object]:
        return {
            "blocks": len(self._shared.index),
            "reserved_blocks": len(self._shared.in_flight.masks),
            "approximate_bytes": self._shared.models.used_bytes,
            "slots": {slot: cache.statistics() for slot, cache in self._slots.items()},
        }

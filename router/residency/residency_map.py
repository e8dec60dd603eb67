"""The cached tokens of a prompt on each worker, for the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

import numpy as np

from policies.view import Residency, WorkerId
from router.residency.cache_view import CacheView, ViewChanges, usable_chain
from router.residency.event_feed import EventFeed
from router.residency.exact.blocks import BlockIndex
from router.residency.exact.difference import Difference
from router.residency.in_flight import ReservedBlocks, ResidencyReservation
from router.residency.matching import each_bit, lengths
from router.residency.prompt import Prompt
from router.residency.slot_groups import Matches, SlotGroups, Slots, resident_blocks
from router.residency.view import Ingest, IngestOutcome, Match, PlacedBlocks, ViewState

_SWEEP_BLOCKS = 512
"""Traces of dropped views cleaned up per call; takes about 0.1 ms."""

_SHRINK_PARTS = 64
"""A view over the bound gives up at least 1/64 of the bound, so that the next request does not have to."""

_IGNORED = Ingest(IngestOutcome.IGNORED)
_LOOKED_UP = (Residency.EXACT, Residency.APPROXIMATE)


class ResidencyMap:
    """One view per slot: exact if the worker publishes KV events, else a model of its cache.

    A slot is a small int, unique among live candidates and reused after `remove`. Calls for an unknown slot are
    ignored, because a worker may leave while a call for it is on its way.

    Memory: an exact view is bounded by the worker's cache (twice its tokens; `exact.FASTEST_TIER_BLOCKS` if not
    reported), slower tiers by `block_copies.LOWER_TIER_BLOCKS`, orphans by `orphans.ORPHAN_BYTES`, delayed batches by
    `sequence.PENDING_BYTES`. `approximate_bytes` bounds all approximate views together.
    """

    def __init__(self, approximate_bytes: int = 134_217_728, relearn_blocks_per_s: int = 1_000) -> None:
        self._approximate_bytes = approximate_bytes
        self._relearn_blocks_per_s = relearn_blocks_per_s
        self._modelled_bytes = 0
        self._index = BlockIndex()
        self._in_flight = ReservedBlocks()
        self._slots: dict[int, CacheView] = {}
        self._changes = ViewChanges()
        self._groups: SlotGroups | None = None
        self._grouped_at = -1
        """Count of changes for which the groups were made."""
        self._asked: list[int] = []
        self._asked_slots = np.array([], np.int64)
        """The slots of the last `match`, as an array too: most matches ask for the same."""
        self.on_settled: list[Callable[[int, Difference], None]] = []
        """Called with a ticket's id once the reason of a pending difference is known."""
        self.on_placed: list[Callable[[PlacedBlocks], None]] = []
        """Called when a prompt is placed on a slot with a modelled cache, with the blocks that the model lacked."""
        self._slot_of: dict[WorkerId, int] = {}

    def add(self, slot: int, worker: WorkerId, block_size: int, capacity_blocks: int | None, events: bool) -> None:
        """Start a view. It is approximate if `events` is False (or the publisher is not known yet).

        Raises:
            ValueError: `block_size` is not positive.
        """
        if block_size < 1:
            raise ValueError(f"block_size {block_size} of {worker} is not positive")
        self.remove(slot)
        self._slots[slot] = CacheView(self._index, worker, block_size, capacity_blocks, events, self._changes)
        self._slot_of[worker] = slot
        self._changes.count += 1

    def configure(
        self,
        slot: int,
        *,
        block_size: int | None = None,
        capacity_blocks: int | None = None,
        events: bool | None = None,
    ) -> None:
        """Apply facts from a probe. None leaves a value as it is. The view starts over only if it must."""
        if view := self._slots.get(slot):
            before = view.event_feed
            view.configure(self._index, block_size, capacity_blocks, events)
            self._changes.count += 1  # the block size of a modelled view changes without a refresh
            if before is not view.event_feed:
                self._abandon(before)
            self._recount()

    def remove(self, slot: int) -> None:
        view = self._slots.pop(slot, None)
        if view is None:
            return
        if self._slot_of.get(view.worker) == slot:
            del self._slot_of[view.worker]
        self._changes.stale.discard(view)
        self._changes.count += 1
        for reservation in view.reservations.values():
            self._in_flight.take_back(1 << slot, reservation.added)
        if view.event_feed is not None:
            view.event_feed.view.block_copies.give_up()
        self._abandon(view.event_feed)
        self._recount()

    def _abandon(self, event_feed: EventFeed | None) -> None:
        if event_feed is not None:
            event_feed.drift.give_up(Difference.CLEARED)
            self._pass_on_settled(event_feed)

    def _pass_on_settled(self, event_feed: EventFeed) -> None:
        settled, event_feed.drift.settled = event_feed.drift.settled, []
        for ticket_id, difference in settled:
            for notify in self.on_settled:
                notify(ticket_id, difference)

    def _feed(self, slot: int) -> EventFeed | None:
        """Return the slot's events, which may change what a match reads; None if there are none."""
        view = self._slots.get(slot)
        if view is None:
            return None
        view.mark_stale()
        return view.event_feed

    def events_from(self, slot: int, address: str, topic: str = "") -> None:
        """Set the address and topic of the slot's publisher, which the view names if no event arrives."""
        if event_feed := self._feed(slot):
            event_feed.follow(address, topic)

    def accept_hashes(self, slot: int) -> None:
        """Accept block hashes from the slot's publisher in place of token ids: they are in this router's own form."""
        if event_feed := self._feed(slot):
            event_feed.view.accepts_hashes = True

    def events_switched_off(self, slot: int) -> None:
        if view := self._slots.get(slot):
            view.switched_off = True

    def unproved(self, slot: int) -> bool:
        """Return whether it is unknown if events were missed, so that another replay may help."""
        view = self._slots.get(slot)
        return view is not None and view.event_feed is not None and view.event_feed.unproved

    def link_up(self, slot: int) -> Ingest:
        """Record that the subscription is connected. Asks for a replay, the first time from 0."""
        event_feed = self._feed(slot)
        return _IGNORED if event_feed is None else event_feed.link_up()

    def link_lost(self, slot: int) -> None:
        """Record that the subscription dropped. The view is uncertain until a replay or the next batch shows that
        nothing was missed."""
        if event_feed := self._feed(slot):
            event_feed.link_lost()
            self._pass_on_settled(event_feed)

    def ingest(self, slot: int, seq: int, payload: bytes, *, replayed: bool = False) -> Ingest:
        self._index.sweep(_SWEEP_BLOCKS)
        event_feed = self._feed(slot)
        if event_feed is None:
            return _IGNORED
        ingest = event_feed.ingest(seq, payload, replayed)
        if event_feed.drift.settled:
            self._pass_on_settled(event_feed)
        return ingest

    def replay_ended(self, slot: int, ok: bool) -> Ingest:
        """Record the END marker (`ok`) or a failed replay (no socket, timeout, error). The result may ask for one more
        replay.
        """
        event_feed = self._feed(slot)
        if event_feed is None:
            return _IGNORED
        ingest = event_feed.replay_ended(ok)
        self._pass_on_settled(event_feed)
        return ingest

    def match(self, prompt: Prompt, slots: Iterable[int]) -> dict[int, Match]:
        """Return the cached tokens of `prompt` on each of `slots`. An unknown slot has none and residency UNKNOWN."""
        asked = list(slots)
        if asked != self._asked:
            self._asked, self._asked_slots = asked, np.array(asked, np.int64)
        return dict(zip(asked, self.match_all(prompt, self._asked_slots).ordered(), strict=True))

    def held_below(self, prompt: Prompt, slots: Iterable[int], media: Container[str]) -> dict[int, int]:
        """Return the tokens of the longest prefix of `prompt` that each of `slots` holds in the slower tiers `media`.

        Names of tiers are upper case. Slots that hold nothing there are left out.
        """
        found: dict[int, int] = {}
        if not self._index.tiered or not prompt.exact:
            return found
        slots_by_size: dict[int, dict[int, int]] = {}
        for slot in slots:
            view = self._slots.get(slot)
            if view is not None and view.stale:
                view.refresh()
            if view is not None and view.slower_tiers and view.residency is not Residency.OFF:
                slots_by_size.setdefault(view.block_size, {})[view.bit] = slot
        for block_size, slot_of in slots_by_size.items():
            chain, usable = usable_chain(prompt, block_size)
            for blocks, bits in lengths(self._index.probe_below(chain, media), usable, sum(slot_of), 0):
                if blocks:
                    found.update({slot_of[bit]: blocks * block_size for bit in each_bit(bits)})
        return found

    def match_all(self, prompt: Prompt, slots: Slots) -> Matches:
        while self._changes.stale:
            self._changes.stale.pop().refresh()
        if self._groups is None or self._grouped_at != self._changes.count:
            self._groups, self._grouped_at = SlotGroups(self._slots), self._changes.count
        return self._groups.match(self._index, self._in_flight, prompt, slots)

    def reserve(
        self,
        slot: int,
        prompt: Prompt,
        ticket_id: int,
        predicted_tokens: int | None = None,
        *,
        recomputes: bool = False,
        found: Match | None = None,
    ) -> None:
        """Reserve the blocks of a placed request: they count as cached on the slot until `release`.

        `predicted_tokens` is the expected report of cached tokens; None if unknown. With `recomputes` the request reads
        no cache and writes a copy of its own. `found` is the result of the latest `match`; without it the prompt is
        matched again.
        """
        self._index.sweep(_SWEEP_BLOCKS)
        view = self._slots.get(slot)
        if view is None or ticket_id in view.reservations:
            return
        block_size, start = self._resident(slot, view, prompt, found)
        chain, usable = usable_chain(prompt, block_size)
        reservation = view.reservations[ticket_id] = ResidencyReservation(
            prompt,
            start,
            usable,
            block_size,
            chain[start:],
            predicted_tokens,
            exact=prompt.exact and view.residency is Residency.EXACT,
            clock=view.model.clock if view.model is not None else 0,
            mark=view.event_feed.mark() if view.event_feed is not None else None,
        )
        self._in_flight.add(1 << slot, reservation.added)
        if view.event_feed is not None:
            view.event_feed.reserved(ticket_id, prompt)
            if recomputes and prompt.exact and chain:
                view.event_feed.view.recomputes(ticket_id, chain[0])
        before = view.model_bytes
        view.reserve(reservation)
        self._bound(view.model_bytes - before)
        if self.on_placed and view.modelled and view.residency is not Residency.OFF and not prompt.multiple:
            reserved = found.reserved_tokens // block_size if found is not None else 0
            self._tell_placed(view, prompt.chain(block_size), start, reserved)

    def _tell_placed(self, view: CacheView, chain: Sequence[int], start: int, reserved: int) -> None:
        """Tell of the blocks that the model lacks, except those that `reserved` says are in flight already."""
        steps, depth = view.needed_model().known(chain)
        if reserved and depth == start:
            steps.append(chain[depth])
            depth += reserved
        if depth < len(chain):
            if depth:
                steps.append(chain[depth - 1])
            placed = PlacedBlocks(view.worker, view.block_size, chain, steps, depth)
            for notify in self.on_placed:
                notify(placed)

    def placed_elsewhere(
        self, worker: WorkerId, block_size: int, steps: Sequence[int], depth: int, blocks: Sequence[int]
    ) -> bool:
        """Store blocks of a prompt that another router has placed (`ApproximateView.placed`); False if that cannot be.

        A worker whose events describe its cache needs none of it.
        """
        view = self._slots.get(self._slot_of.get(worker, -1))
        if view is None or view.block_size != block_size:
            return False
        if not view.modelled:
            return True
        before = view.model_bytes
        stored = view.needed_model().placed(steps, depth, blocks)
        self._bound(view.model_bytes - before)
        return stored

    @property
    def workers(self) -> Iterable[WorkerId]:
        return self._slot_of.keys()

    @property
    def models(self) -> bool:
        return any(view.modelled for view in self._slots.values())

    def _resident(self, slot: int, view: CacheView, prompt: Prompt, found: Match | None) -> tuple[int, int]:
        """Return the slot's block size and how many blocks of `prompt` are cached there, without reserved ones."""
        if found is not None and found.residency in _LOOKED_UP:
            return view.block_size, (found.tokens - found.reserved_tokens) // view.block_size
        view.refresh()
        return view.block_size, resident_blocks(self._index, view, prompt)

    def asks_again(self, slot: int, ticket_id: int, now_s: float) -> bool:
        """Return whether a placed request should ask its worker to announce the prompt's cached blocks again.

        True only if events were missed and cached blocks of this prompt may be unknown, at most `relearn_blocks_per_s`
        blocks per worker. After True the request must ask, since the view waits for the announcement.
        """
        view = self._slots.get(slot)
        if view is None or view.event_feed is None or view.blind:
            return False
        return view.event_feed.asks_again(ticket_id, now_s, self._relearn_blocks_per_s)

    def first_token(self, slot: int, ticket_id: int) -> None:
        """Record that a reserved request runs. If it is cut off from now on, its prompt stays in the cache."""
        if view := self._slots.get(slot):
            view.first_token(ticket_id)

    def finished(
        self,
        slot: int,
        prompt: Prompt,
        generated_tokens: int | None,
        cached_tokens: int | None,
        ticket_id: int | None = None,
    ) -> Difference | None:
        """Record a request that was served to its end; call it before `release`.

        Approximate views learn from it, exact views are compared. `generated_tokens` and `cached_tokens` are the
        response's report, None if absent. Without `ticket_id` the view has no prediction to correct.

        Return the reason why `cached_tokens` differs from the prediction; None if it does not or there was no
        prediction. After `Difference.PENDING`, `on_settled` is called later.
        """
        view = self._slots.get(slot)
        if view is None:
            return None
        before = view.model_bytes
        difference = view.finished(prompt, generated_tokens or 0, cached_tokens, ticket_id)
        self._bound(view.model_bytes - before)
        if view.event_feed is not None:
            self._pass_on_settled(view.event_feed)
        return difference

    def release(self, slot: int, ticket_id: int) -> None:
        """Release a reservation after the request finished, failed or was cancelled. Idempotent."""
        view = self._slots.get(slot)
        reservation = None if view is None else view.reservations.pop(ticket_id, None)
        if view is None or reservation is None:
            return
        self._in_flight.take_back(1 << slot, reservation.added)
        if view.event_feed is not None:
            view.event_feed.view.released(ticket_id)
        before = view.model_bytes
        view.release(reservation)
        self._bound(view.model_bytes - before)

    def modelled_cache_cleared(self, slot: int) -> None:
        """Record that the slot's cache was emptied. The view from KV events follows its own events."""
        if view := self._slots.get(slot):
            view.shrink(0)
            view.mark_stale()
            self._recount()

    def _bound(self, grown_bytes: int) -> None:
        """Keep the sum of all models under the bound by shrinking the largest, a part of the bound at a time."""
        self._modelled_bytes += grown_bytes
        while self._modelled_bytes > self._approximate_bytes:
            largest = max((view for view in self._slots.values()), key=lambda view: view.model_bytes)
            before = largest.model_bytes
            excess = self._modelled_bytes - self._approximate_bytes
            largest.shrink(before - max(excess, self._approximate_bytes // _SHRINK_PARTS))
            self._modelled_bytes -= before - largest.model_bytes

    def _recount(self) -> None:
        self._modelled_bytes = sum(view.model_bytes for view in self._slots.values())

    def set_self_test(self, slot: int, verdict: Residency, reason: str, *, blind: bool = False) -> None:
        """Record a self-test: EXACT (events and reports agree), APPROXIMATE (they do not), OFF (no prefix caching),
        UNKNOWN (no test, or no result).

        `blind`: the worker had the prompt cached but its events did not show it, so the model is used.
        """
        if view := self._slots.get(slot):
            view.tested(verdict, reason, blind)

    def holders(self, block_hash: int) -> list[int]:
        """Return the slots whose worker holds a block on its GPU, as far as its view follows KV events."""
        bits = self._index.holders(block_hash)
        return [slot for slot, view in self._slots.items() if view.bit & bits]

    def state(self, slot: int) -> ViewState:
        """Describe how far the slot's view can be trusted.

        Raises:
            KeyError: there is no such slot.
        """
        return self._slots[slot].state()

    def statistics(self) -> dict[str, object]:
        return {
            "blocks": len(self._index),
            "reserved_blocks": len(self._in_flight.masks),
            "approximate_bytes": self._modelled_bytes,
            "slots": {slot: view.statistics() for slot, view in self._slots.items()},
        }

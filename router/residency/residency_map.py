"""The facade the rest of the router asks: which worker holds how much of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from policies.view import Residency, WorkerId
from router.residency.blocks import BlockIndex
from router.residency.cache_view import CacheView, usable_chain
from router.residency.difference import Difference
from router.residency.event_view import EventView
from router.residency.in_flight import ReservedBlocks, ResidencyReservation
from router.residency.lookup import by_tier, resident_lengths
from router.residency.matching import each_bit, lengths
from router.residency.prompt import Prompt
from router.residency.view import Ingest, IngestOutcome, Match, ViewState

_SWEEP_BLOCKS = 512
"""Traces of dropped views cleaned up per call: about 0.1 ms."""

_SHRINK_PARTS = 64
"""Over the bound, a view gives up at least this part of it, so that the next request does not have to."""

_IGNORED = Ingest(IngestOutcome.IGNORED)
_ABSENT = Match(0, 0, Residency.UNKNOWN)
_OFF = Match(0, 0, Residency.OFF)
_LOOKED_UP = (Residency.EXACT, Residency.APPROXIMATE)


class ResidencyMap:
    """One view per slot: exact where KV events come in, a model of the worker's cache where they do not.

    A slot is a small int, unique among live candidates, reused after `remove`. Calls for a slot that is not there
    are ignored: a worker may go while a call for it is on its way.

    Memory: an exact view is bounded by its worker's cache (twice its tokens, `exact.FASTEST_TIER_BLOCKS` where it did
    not say), slower tiers by `block_copies.LOWER_TIER_BLOCKS`, orphans by `orphans.ORPHAN_BYTES`, batches held back by
    `sequence.PENDING_BYTES`; all approximate views together by `approximate_bytes`.
    """

    def __init__(self, approximate_bytes: int = 134_217_728, relearn_blocks_per_s: int = 1_000) -> None:
        self._approximate_bytes = approximate_bytes
        self._relearn_blocks_per_s = relearn_blocks_per_s
        self._modelled_bytes = 0
        self._index = BlockIndex()
        self._in_flight = ReservedBlocks()
        self._slots: dict[int, CacheView] = {}
        self.on_settled: list[Callable[[int, Difference], None]] = []
        """Called with a ticket's id once it is known what explains a difference that was pending."""

    def add(self, slot: int, worker: WorkerId, block_size: int, capacity_blocks: int | None, events: bool) -> None:
        """Start a view. `events` False (or no publisher known yet) makes it approximate.

        Raises:
            ValueError: `block_size` is not positive.
        """
        if block_size < 1:
            raise ValueError(f"block_size {block_size} of {worker} is not positive")
        self.remove(slot)
        self._slots[slot] = CacheView(self._index, worker, block_size, capacity_blocks, events)

    def configure(
        self,
        slot: int,
        *,
        block_size: int | None = None,
        capacity_blocks: int | None = None,
        events: bool | None = None,
    ) -> None:
        """Facts changed (a probe learned more). None leaves a value as it is; a view starts over only if it must."""
        if view := self._slots.get(slot):
            before = view.published
            view.configure(self._index, block_size, capacity_blocks, events)
            if before is not view.published:
                self._abandon(before)
            self._recount()

    def remove(self, slot: int) -> None:
        """Forget the slot, its bookings included."""
        view = self._slots.pop(slot, None)
        if view is None:
            return
        for reservation in view.reservations.values():
            self._in_flight.take_back(1 << slot, reservation.added)
        if view.published is not None:
            view.published.view.block_copies.give_up()
        self._abandon(view.published)
        self._recount()

    def _abandon(self, published: EventView | None) -> None:
        if published is not None:
            published.drift.give_up(Difference.CLEARED)
            self._tell(published)

    def _tell(self, published: EventView) -> None:
        """Pass on what has become of differences that were pending."""
        settled, published.drift.settled = published.drift.settled, []
        for ticket_id, difference in settled:
            for told in self.on_settled:
                told(ticket_id, difference)

    def events_from(self, slot: int, address: str, topic: str = "") -> None:
        """Where the slot's publisher is, and what of it is subscribed to: said when nothing comes from there."""
        view = self._slots.get(slot)
        if view is not None and view.published is not None:
            view.published.follow(address, topic)
            view.stale = True

    def accept_hashes(self, slot: int) -> None:
        """Where the slot's publisher tells no token ids its block hashes are ours: prompts' chains are made of them."""
        view = self._slots.get(slot)
        if view is not None and view.published is not None:
            view.published.view.accepts_hashes = True

    def events_switched_off(self, slot: int) -> None:
        """The worker may publish, but by the configuration nobody listens."""
        if view := self._slots.get(slot):
            view.switched_off = True

    def unproved(self, slot: int) -> bool:
        """Nothing says whether events were missed: another replay may."""
        view = self._slots.get(slot)
        return view is not None and view.published is not None and view.published.unproved

    def link_up(self, slot: int) -> Ingest:
        """The subscription is connected, for the first time or again. Asks for a replay: from 0 the first time."""
        view = self._slots.get(slot)
        if view is None or view.published is None:
            return _IGNORED
        view.stale = True
        return view.published.link_up()

    def link_lost(self, slot: int) -> None:
        """The subscription dropped: unknown until a replay or the next batch proves that nothing was missed."""
        view = self._slots.get(slot)
        if view is not None and view.published is not None:
            view.stale = True
            view.published.link_lost()
            self._tell(view.published)

    def ingest(self, slot: int, seq: int, payload: bytes, *, replayed: bool = False) -> Ingest:
        """Decode, put in sequence and apply one batch. Never raises for what is on the wire."""
        self._index.sweep(_SWEEP_BLOCKS)
        view = self._slots.get(slot)
        if view is None or view.published is None:
            return _IGNORED
        view.stale = True
        ingest = view.published.ingest(seq, payload, replayed)
        if view.published.drift.settled:
            self._tell(view.published)
        return ingest

    def replay_ended(self, slot: int, ok: bool) -> Ingest:
        """The END marker came (`ok`), or no answer will (no replay socket, time-out, error). May ask once more."""
        view = self._slots.get(slot)
        if view is None or view.published is None:
            return _IGNORED
        view.stale = True
        ingest = view.published.replay_ended(ok)
        self._tell(view.published)
        return ingest

    def match(self, prompt: Prompt, slots: Iterable[int]) -> dict[int, Match]:
        """Cached tokens of `prompt` on each of `slots`; a slot that is not there has none, and is unknown."""
        matches: dict[int, Match] = {}
        views: dict[int, CacheView] = {}
        known = self._slots
        for slot in slots:
            view = known.get(slot)
            if view is None:
                matches[slot] = _ABSENT
                continue
            if view.stale:
                view.refresh()
            views[slot] = view
        for block_size, by_length in resident_lengths(self._index, prompt, views).items():
            chain, usable = usable_chain(prompt, block_size)
            for start, here in by_length.items():
                for end, held in self._with_reserved(chain, start, usable, here):
                    self._answer(matches, views, held, block_size, start, end, prompt.exact)
        if self._index.lower:
            self._add_tiers(matches, views, prompt)
        return matches

    def _with_reserved(
        self, chain: Sequence[int], start: int, usable: int, here: list[int]
    ) -> list[tuple[int, list[int]]]:
        """Slots of `here` hold `start` blocks: how far what is booked behind them goes on."""
        booked = self._in_flight.masks
        next_reserved = booked.get(chain[start], 0) if booked and start < usable else 0
        if not next_reserved:
            return [(start, here)]
        going_on = next_reserved & sum([1 << slot for slot in here])
        ends = lengths(lambda index: booked.get(chain[index], 0), usable, going_on, 0, start)
        further = [(end, [bit.bit_length() - 1 for bit in each_bit(bits)]) for end, bits in ends]
        return [*further, (start, [slot for slot in here if not going_on >> slot & 1])]

    @staticmethod
    def _answer(
        matches: dict[int, Match],
        views: dict[int, CacheView],
        held: list[int],
        block_size: int,
        start: int,
        end: int,
        exact: bool,
    ) -> None:
        same: dict[Residency, Match] = {}
        for slot in held:
            residency = views[slot].residency
            if not exact and residency is not Residency.OFF:
                residency = Residency.APPROXIMATE
            match = same.get(residency)
            if match is None:
                match = same[residency] = (
                    _OFF
                    if residency is Residency.OFF
                    else Match(end * block_size, (end - start) * block_size, residency)
                )
            matches[slot] = match

    def _add_tiers(self, matches: dict[int, Match], views: dict[int, CacheView], prompt: Prompt) -> None:
        for slot, view in views.items():
            if view.slower_tiers and prompt.exact and view.residency is not Residency.OFF:
                chain, usable = usable_chain(prompt, view.block_size)
                match = matches[slot]
                start = (match.tokens - match.reserved_tokens) // view.block_size
                blocks = by_tier(self._index, chain, start, usable, view.bit)
                tokens = {tier: count * view.block_size for tier, count in blocks.items()}
                matches[slot] = Match(match.tokens, match.reserved_tokens, match.residency, tokens)

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
        """A request is on its way to the slot: its blocks count as there until `released`.

        `predicted_tokens` are what the answer will report of it, None where that is not known. `recomputes`: it reads
        no cache, and writes a copy of its own. `found` is what `match` has just said; without it that is asked again.
        """
        self._index.sweep(_SWEEP_BLOCKS)
        view = self._slots.get(slot)
        if view is None or ticket_id in view.reservations:
            return
        block_size, start = self._resident(slot, view, prompt, found)
        reservation = view.reservations[ticket_id] = ResidencyReservation(
            prompt,
            start,
            usable_chain(prompt, block_size)[1],
            block_size,
            predicted_tokens,
            exact=prompt.exact and view.residency is Residency.EXACT,
            clock=view.model.clock if view.model is not None else 0,
            mark=view.published.mark() if view.published is not None else None,
        )
        self._in_flight.add(1 << slot, reservation.added)
        if view.published is not None:
            view.published.reserved(ticket_id, prompt)
            if recomputes and prompt.exact and (chain := prompt.chain(block_size)):
                view.published.view.recomputing[ticket_id] = chain[0]
        before = view.model_bytes
        view.reserve(reservation)
        self._bound(view.model_bytes - before)

    def _resident(self, slot: int, view: CacheView, prompt: Prompt, found: Match | None) -> tuple[int, int]:
        """The slot's block size, and how many blocks of `prompt` it has, what is booked left out."""
        if found is not None and found.residency in _LOOKED_UP:
            return view.block_size, (found.tokens - found.reserved_tokens) // view.block_size
        view.refresh()
        ((block_size, by_length),) = resident_lengths(self._index, prompt, {slot: view}).items()
        (start,) = by_length
        return block_size, start

    def asks_again(self, slot: int, ticket_id: int, now_s: float) -> bool:
        """Whether a booked request should have its worker announce again what it finds cached of the prompt.

        Only where events were missed and this prompt's cached blocks may not be known; of one worker no more blocks
        are asked for than `relearn_blocks_per_s`. True is counted on: then the request must ask.
        """
        view = self._slots.get(slot)
        if view is None or view.published is None or view.blind:
            return False
        return view.published.asks_again(ticket_id, now_s, self._relearn_blocks_per_s)

    def first_token(self, slot: int, ticket_id: int) -> None:
        """The booked request is running: cut off from now on, it leaves its prompt in the cache."""
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
        """Served to the end; call before `released`. Approximate views learn here, exact ones are compared.

        `generated_tokens` and `cached_tokens` are what the response reported, None where it did not. Without
        `ticket_id` the view cannot tell what it had predicted, and learns without being corrected.

        Returns what explains that `cached_tokens` are others than were predicted, None where they are not or nothing
        was. `Difference.PENDING` is followed by a call of `on_settled`.
        """
        view = self._slots.get(slot)
        if view is None:
            return None
        before = view.model_bytes
        difference = view.finished(prompt, generated_tokens or 0, cached_tokens, ticket_id)
        self._bound(view.model_bytes - before)
        if view.published is not None:
            self._tell(view.published)
        return difference

    def release(self, slot: int, ticket_id: int) -> None:
        """The booking is over (finished, failed or cancelled). Idempotent."""
        view = self._slots.get(slot)
        reservation = None if view is None else view.reservations.pop(ticket_id, None)
        if view is None or reservation is None:
            return
        self._in_flight.take_back(1 << slot, reservation.added)
        if view.published is not None:
            view.published.view.relearning.closed(ticket_id)
            view.published.view.recomputing.pop(ticket_id, None)
        before = view.model_bytes
        view.release(reservation)
        self._bound(view.model_bytes - before)

    def _bound(self, grown_bytes: int) -> None:
        """Hold the sum of all models under the bound: the largest gives way, a part of the bound at a time."""
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
        """What a trial showed: EXACT (events and reports agree), APPROXIMATE (they do not), OFF (no prefix caching).

        UNKNOWN says that no trial was made, or that it showed nothing. `blind`: the worker had the prompt cached and
        its events did not help to know that, so the model serves.
        """
        if view := self._slots.get(slot):
            view.tested(verdict, reason, blind)

    def state(self, slot: int) -> ViewState:
        """How far the slot's view can be trusted.

        Raises:
            KeyError: there is no such slot.
        """
        return self._slots[slot].state()

    def statistics(self) -> dict[str, object]:
        """Totals, and per slot under "slots"."""
        return {
            **self._index.statistics(),
            **self._in_flight.statistics(),
            "approximate_bytes": self._modelled_bytes,
            "slots": {slot: view.statistics() for slot, view in self._slots.items()},
        }

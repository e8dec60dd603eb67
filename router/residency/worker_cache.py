"""What one worker has cached, as far as it is known, and the blocks of the requests that are placed there."""

from __future__ import annotations

from collections.abc import Sequence

from policies.view import Residency, WorkerId
from router.residency.cache_model import CacheModel
from router.residency.event_feed import EventFeed
from router.residency.exact.difference import Difference
from router.residency.in_flight import ResidencyReservation
from router.residency.matching import lengths
from router.residency.prompt import Prompt
from router.residency.shared_caches import SharedCaches
from router.residency.trust import Trust
from router.residency.view import CacheState, Ingest, IngestOutcome, Match, PlacedBlocks

_SWEEP_BLOCKS = 512
"""Traces of dropped caches cleaned up per call; takes about 0.1 ms."""
_IGNORED = Ingest(IngestOutcome.IGNORED)
_LOOKED_UP = (Residency.EXACT, Residency.APPROXIMATE)


class WorkerCache:
    """The cache of one worker, in one slot.

    `event_feed` is what KV events say of it; None if the worker publishes none. `model` replaces it in three cases: the
    events say nothing (`EventFeed.informative` is false), they do not describe this worker's prompts (`blind`), or the
    prompt is known as text only. After a call of `mark_stale`, `refresh` copies into this object the values that a
    match reads.

    A worker may leave while a call for it is on its way. A cache that is not `live` keeps nothing of it.
    """

    def __init__(
        self,
        shared: SharedCaches,
        slot: int,
        worker: WorkerId,
        block_size: int,
        capacity_blocks: int | None,
        events: bool,
        *,
        live: bool = True,
    ) -> None:
        self._shared = shared
        self.slot = slot
        self.live = live
        self.worker = worker
        self.block_size = block_size
        self.capacity_blocks = capacity_blocks
        self.event_feed = EventFeed(shared.index, block_size, capacity_blocks) if events else None
        self.model = CacheModel(shared.models, block_size, capacity_blocks)
        self.reservations: dict[int, ResidencyReservation] = {}
        self.trust = Trust()
        self._refresh()

    # what a match reads

    def mark_stale(self) -> None:
        self.stale = True
        self._shared.stale.add(self.slot)

    def refresh(self) -> None:
        before = self._matched_by()
        self._refresh()
        self._shared.stale.discard(self.slot)
        if self._matched_by() != before:
            self._shared.changes += 1

    def _matched_by(self) -> tuple[object, ...]:
        return self.bit, self.block_size, self.closed, self.modelled, self.residency, self.slower_tiers

    def _refresh(self) -> None:
        self.stale = False
        trust, feed = self.trust, self.event_feed
        plain = trust.verdict is Residency.UNKNOWN and not trust.blind
        sound = plain and feed is not None and feed.sound
        self.residency = Residency.EXACT if sound else trust.judged(feed, self.capacity_blocks)[0]
        self.bit, self.closed, self.slower_tiers, self.modelled = 0, True, False, True
        if feed is not None:
            self.modelled = trust.blind or not feed.informative
            exact = feed.exact
            self.block_size = exact.block_size
            self.capacity_blocks = exact.capacity_blocks
            self.bit = exact.block_copies.bit
            self.closed = feed.closed
            self.slower_tiers = exact.has_slower_tiers
        self.model.capacity_blocks = self.capacity_blocks
        if self.model.block_size != self.block_size:
            self.model.fit(self.block_size, self.capacity_blocks, self.reservations.values())

    def resident_blocks(self, prompt: Prompt) -> int:
        """Return how many blocks of `prompt` are cached here, without reserved ones."""
        chain, usable = prompt.usable_chain(self.block_size)
        if self.modelled or not prompt.exact:
            return self.model.blocks(chain, usable, prompt.tokens)
        closed, open_ = (self.bit, 0) if self.closed else (0, self.bit)
        probe = self._shared.index.probe(chain)
        return next(blocks for blocks, bits in lengths(probe, usable, closed, open_) if bits)

    # what the worker is

    def configure(
        self, *, block_size: int | None = None, capacity_blocks: int | None = None, events: bool | None = None
    ) -> None:
        """Apply facts from a probe; None leaves a value as it is. The cache starts over only if it must."""
        if not self.live:
            return
        before = self.event_feed
        if events is False and before is not None:
            before.exact.block_copies.give_up()
            self.event_feed = None
        if events and self.event_feed is None:
            blocks = capacity_blocks or self.capacity_blocks
            self.event_feed = EventFeed(self._shared.index, block_size or self.block_size, blocks)
            self.trust.blind = self.trust.switched_off = False
        elif self.event_feed is not None:
            self.event_feed.exact.configure(block_size, capacity_blocks)
        else:
            self.block_size = block_size or self.block_size
            self.capacity_blocks = capacity_blocks or self.capacity_blocks
        self.refresh()
        self.model.fit(self.block_size, self.capacity_blocks, self.reservations.values())
        self._shared.changes += 1  # the block size of a modelled cache changes without a refresh
        if before is not self.event_feed:
            self._abandon(before)

    def leave(self) -> None:
        """Take the worker's blocks out of all that the caches share."""
        self.live = False
        self._shared.stale.discard(self.slot)
        self._shared.changes += 1
        for reservation in self.reservations.values():
            self._shared.in_flight.take_back(1 << self.slot, reservation.added)
        if self.event_feed is not None:
            self.event_feed.exact.block_copies.give_up()
        self._abandon(self.event_feed)
        self.model.leave()

    def tested(self, verdict: Residency, reason: str, *, blind: bool = False) -> None:
        """Record a self-test: EXACT (events and reports agree), APPROXIMATE (they do not), OFF (no prefix caching),
        UNKNOWN (no test, or no result).

        `blind`: the worker had the prompt cached but its events did not show it, so the model is used.
        """
        if not self.live:
            return
        self.trust.tested(verdict, reason)
        self.trust.blind = blind and self.event_feed is not None and self.event_feed.heard
        if blind and self.event_feed is not None:
            self.event_feed.unheard()
        self.mark_stale()

    def switched_off(self) -> None:
        """Record that the settings ask for no KV events."""
        self.trust.switched_off = True

    def cleared(self) -> None:
        """Record that the cache was emptied. What is known from KV events follows its own events."""
        self.model.clear()
        self.mark_stale()

    # events

    def _feed(self) -> EventFeed | None:
        """Return the events, which may change what a match reads; None if there are none."""
        self.mark_stale()
        return self.event_feed

    def _abandon(self, event_feed: EventFeed | None) -> None:
        if event_feed is not None:
            event_feed.drift.give_up(Difference.CLEARED)
            self._pass_on_settled(event_feed)

    def _pass_on_settled(self, event_feed: EventFeed | None) -> None:
        if event_feed is not None:
            settled, event_feed.drift.settled = event_feed.drift.settled, []
            for ticket_id, difference in settled:
                for notify in self._shared.on_settled:
                    notify(ticket_id, difference)

    def events_from(self, address: str, topic: str = "") -> None:
        """Set the address and topic of the publisher, which the state names if no event arrives."""
        if event_feed := self._feed():
            event_feed.follow(address, topic)

    def accept_hashes(self) -> None:
        """Accept block hashes from the publisher in place of token ids: they are in this router's own form."""
        if event_feed := self._feed():
            event_feed.exact.accepts_hashes = True

    @property
    def unproved(self) -> bool:
        """Whether it is unknown if events were missed, so that another replay may help."""
        return self.event_feed is not None and self.event_feed.unproved

    def link_up(self) -> Ingest:
        """Record that the subscription is connected. Asks for a replay, the first time from 0."""
        event_feed = self._feed()
        return _IGNORED if event_feed is None else event_feed.link_up()

    def link_lost(self) -> None:
        """Record that the subscription dropped. The cache is uncertain until a replay or the next batch shows that
        nothing was missed."""
        if event_feed := self._feed():
            event_feed.link_lost()
            self._pass_on_settled(event_feed)

    def ingest(self, seq: int, payload: bytes, *, replayed: bool = False) -> Ingest:
        self._shared.index.sweep(_SWEEP_BLOCKS)
        event_feed = self._feed()
        if event_feed is None:
            return _IGNORED
        ingest = event_feed.ingest(seq, payload, replayed)
        if event_feed.drift.settled:
            self._pass_on_settled(event_feed)
        return ingest

    def replay_ended(self, ok: bool) -> Ingest:
        """Record the END marker (`ok`) or a failed replay (no socket, timeout, error). The result may ask for one more
        replay.
        """
        event_feed = self._feed()
        if event_feed is None:
            return _IGNORED
        ingest = event_feed.replay_ended(ok)
        self._pass_on_settled(event_feed)
        return ingest

    # requests

    def _teaches_model(self, prompt: Prompt) -> bool:
        """Return whether the model learns from `prompt`, because it answers for the prompt now or may have to soon."""
        feed = self.event_feed
        return feed is None or self.trust.blind or not feed.informative or not prompt.exact or feed.unproved

    def reserve(
        self,
        prompt: Prompt,
        ticket_id: int,
        predicted_tokens: int | None = None,
        *,
        recomputes: bool = False,
        found: Match | None = None,
    ) -> None:
        """Reserve the blocks of a placed request: they count as cached here until `release`.

        `predicted_tokens` is the expected report of cached tokens; None if unknown. With `recomputes` the request reads
        no cache and writes a copy of its own. `found` is the result of the latest match; without it the prompt is
        matched again.
        """
        shared, event_feed = self._shared, self.event_feed
        shared.index.sweep(_SWEEP_BLOCKS)
        if not self.live or ticket_id in self.reservations:
            return
        if found is not None and found.residency in _LOOKED_UP:
            start = (found.tokens - found.reserved_tokens) // self.block_size
        else:
            self.refresh()
            start = self.resident_blocks(prompt)
        chain, usable = prompt.usable_chain(self.block_size)
        reservation = self.reservations[ticket_id] = ResidencyReservation(
            prompt,
            start,
            usable,
            self.block_size,
            chain[start:],
            predicted_tokens,
            exact=prompt.exact and self.residency is Residency.EXACT,
            clock=self.model.cache.clock if self.model.cache is not None else 0,
            mark=event_feed.mark() if event_feed is not None else None,
        )
        shared.in_flight.add(1 << self.slot, reservation.added)
        if event_feed is not None:
            event_feed.reserved(ticket_id, prompt)
            if recomputes and prompt.exact and chain:
                event_feed.exact.recomputes(ticket_id, chain[0])
        if self._teaches_model(prompt):
            self.model.reserve(reservation)
        if shared.on_placed and self.modelled and self.residency is not Residency.OFF and not prompt.multiple:
            reserved = found.reserved_tokens // self.block_size if found is not None else 0
            self._tell_placed(prompt.chain(self.block_size), start, reserved)

    def _tell_placed(self, chain: Sequence[int], start: int, reserved: int) -> None:
        """Tell of the blocks that the model lacks, except those that `reserved` says are in flight already."""
        steps, depth = self.model.needed().known(chain)
        if reserved and depth == start:
            steps.append(chain[depth])
            depth += reserved
        if depth < len(chain):
            if depth:
                steps.append(chain[depth - 1])
            placed = PlacedBlocks(self.worker, self.block_size, chain, steps, depth)
            for notify in self._shared.on_placed:
                notify(placed)

    def asks_again(self, ticket_id: int, now_s: float) -> bool:
        """Return whether a placed request should ask its worker to announce the prompt's cached blocks again.

        True only if events were missed and cached blocks of this prompt may be unknown, at most `relearn_blocks_per_s`
        blocks per worker. After True the request must ask, since the cache waits for the announcement.
        """
        if self.event_feed is None or self.trust.blind:
            return False
        return self.event_feed.asks_again(ticket_id, now_s, self._shared.relearn_blocks_per_s)

    def first_token(self, ticket_id: int) -> None:
        """Record that a reserved request runs. If it is cut off from now on, its prompt stays in the cache."""
        reservation = self.reservations.get(ticket_id)
        if reservation is not None:
            reservation.running = True

    def finished(
        self, prompt: Prompt, generated_tokens: int | None, cached_tokens: int | None, ticket_id: int | None = None
    ) -> Difference | None:
        """Record a request that was served to its end; call it before `release`.

        Models learn from it, exact caches are compared. `generated_tokens` and `cached_tokens` are the response's
        report, None if absent. Without `ticket_id` there is no prediction to correct.

        Return the reason why `cached_tokens` differs from the prediction; None if it does not or there was no
        prediction. After `Difference.PENDING`, `on_settled` is called later.
        """
        reservation = None if ticket_id is None else self.reservations.get(ticket_id)
        if not self.live or (reservation is not None and reservation.done):
            return None
        if reservation is not None:
            reservation.done = True
        reported_tokens = None if prompt.multiple else cached_tokens
        difference = None
        if self.event_feed is not None and prompt.exact:
            event_feed = self.event_feed
            event_feed.served()
            if reported_tokens is not None and event_feed.begun:
                block_size = event_feed.exact.block_size
                if ticket_id is not None:
                    event_feed.found(ticket_id, reported_tokens)
                claim = None if ticket_id is None or reservation is None else reservation.claim(ticket_id, block_size)
                difference = event_feed.report(prompt.chain(block_size), reported_tokens, claim)
            self.mark_stale()
        if self._teaches_model(prompt):
            self.model.finished(prompt, generated_tokens or 0, reported_tokens, reservation)
        elif reservation is not None:
            self.model.end_running(reservation)
        self._pass_on_settled(self.event_feed)
        return _difference(reservation, reported_tokens, difference)

    def release(self, ticket_id: int) -> None:
        """Release a reservation after the request finished, failed or was cancelled. Idempotent.

        A request that ran and was cut off leaves its prompt in the cache.
        """
        reservation = self.reservations.pop(ticket_id, None)
        if reservation is None or not self.live:
            return
        self._shared.in_flight.take_back(1 << self.slot, reservation.added)
        if self.event_feed is not None:
            self.event_feed.exact.released(ticket_id)
        if reservation.running and not reservation.done and self._teaches_model(reservation.prompt):
            self.model.cut_off(reservation)
        else:
            self.model.end_running(reservation)

    # for operators

    def state(self) -> CacheState:
        if not self.live:
            return CacheState(Residency.UNKNOWN, "the worker has left", 0, self.block_size, None)
        residency, reason = self.trust.judged(self.event_feed, self.capacity_blocks)
        self.refresh()
        feed, cache = self.event_feed, self.model.cache
        if feed is None or self.modelled:
            blocks = 0 if cache is None else cache.blocks
            return CacheState(residency, reason, blocks, self.block_size, self.capacity_blocks)
        blocks, seq = feed.exact.block_copies.blocks, feed.sequence.next_seq
        return CacheState(residency, reason, blocks, self.block_size, self.capacity_blocks, seq, feed.last_event_ts_s)

    def statistics(self) -> dict[str, object]:
        self.refresh()
        figures: dict[str, object] = {
            "worker": self.worker,
            "residency": str(self.residency),
            "reservations": len(self.reservations),
        }
        if self.event_feed is not None:
            figures |= self.event_feed.statistics()
        if self.model.cache is not None:
            figures["model"] = self.model.cache.statistics()
        return figures


def _difference(
    reservation: ResidencyReservation | None, reported: int | None, judged: Difference | None
) -> Difference | None:
    """Return the reason to report for one request. An approximate prediction needs no further explanation."""
    if reservation is None or reservation.predicted_tokens is None or reported in (None, reservation.predicted_tokens):
        return None
    return Difference.APPROXIMATE if judged is None or not reservation.exact else judged

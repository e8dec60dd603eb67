"""One worker's event stream: decoding, order, the view it makes, and how far that view can be trusted."""

from __future__ import annotations

from collections.abc import Sequence

from backends.vllm.events import WireError, decode_batch
from router.residency.exact.blocks import BlockIndex
from router.residency.exact.difference import Difference
from router.residency.exact.drift import CacheMark, DriftMonitor, PredictedHit
from router.residency.exact.exact import ExactCache
from router.residency.prompt import Prompt
from router.residency.sequence import EventSequence, SequenceStep
from router.residency.view import Ingest, IngestOutcome

ABSENT_REQUESTS = 8
"""Requests served without a new event after which a model is preferred to a view whose link is down."""


class EventFeed:
    """Take live and replayed batches, keep an `ExactCache`, and track whether batches were missed.

    After a loss that no replay fills, the known blocks are dropped and learned again from events and from the
    ``cached_tokens`` of responses. Until then a match is roughly a lower bound. The view is exact again once the worker
    clears its cache or restarts. While a replay runs or the link is down, a match uses the last known state.

    Reports are also compared with an exact cache. The view is repaired after a difference without an explanation, and
    called approximate if such differences continue (`drift`).
    """

    def __init__(self, index: BlockIndex, block_size: int, capacity_blocks: int | None) -> None:
        self.exact = ExactCache(index, block_size, capacity_blocks)
        self.sequence = EventSequence()
        self.drift = DriftMonitor()
        self.address = ""
        self.topic = ""
        self.last_event_ts_s: float | None = None
        self.begun = False
        """Whether the publisher was reached at least once."""
        self.connected = False
        self._proved = False
        self.loss = ""
        """The batches that were missed, in words; empty if none are."""
        self._lapses = 0
        self.reports_before = 0
        """The count of reports at the loss."""
        self._generation = 0
        self.batches = 0
        self._live_batches = 0
        self._unheard_hits = 0
        self._absent_requests = 0
        self._decode_errors = 0

    def follow(self, address: str, topic: str) -> None:
        if (address, topic) != (self.address, self.topic):
            self.address, self.topic = address, topic
            self._live_batches = self._unheard_hits = 0

    def link_up(self) -> Ingest:
        self.connected = self.begun = True
        return self._do(self.sequence.link_up())

    def link_lost(self) -> None:
        self.connected = self._proved = False
        self._lapse()
        self.sequence.link_lost()

    def ingest(self, seq: int, payload: bytes, replayed: bool) -> Ingest:
        self.connected = self.begun = True
        if replayed:
            return self._do(self.sequence.offer_replayed(seq, payload))
        self._live_batches += 1
        return self._do(self.sequence.offer(seq, payload))

    def replay_ended(self, ok: bool) -> Ingest:
        return self._do(self.sequence.replay_ended(ok))

    def _do(self, step: SequenceStep) -> Ingest:
        if step.restarted:
            self.exact.clear()
            self._begin_again()
        missing = 0
        if step.lost is not None:
            first, after = step.lost
            missing = after - first
            self._lose(f"event batches {first} to {after - 1} were missed and could not be replayed")
        outcome = step.outcome
        for seq, payload in step.ready:
            if not self._apply(seq, payload):
                outcome = IngestOutcome.REJECTED
        self._prove()
        return Ingest(outcome, step.replay_from, missing)

    def _apply(self, seq: int, payload: bytes) -> bool:
        try:
            batch = decode_batch(payload)
        except WireError as error:
            self._decode_errors += 1
            self._lose(f"event batch {seq} could not be read ({error})")
            return False
        self.batches += 1
        self.last_event_ts_s = batch.ts
        if self.exact.apply(batch):
            self._begin_again()
            self.sequence.forget_assumptions()
        elif self.exact.relearning.over:
            self.relearned()
        return True

    def relearned(self) -> None:
        """Record that no block is missing: every missed block was evicted or announced again."""
        self.loss = ""
        self._lapse()
        self.exact.relearning.relearned += 1
        self.exact.relearning.end()
        # Blocks known from reports alone were last used before the witness was computed, so they were evicted before
        # it.
        self.exact.reported.bound(0)

    def _begin_again(self) -> None:
        self.loss = ""
        self._generation += 1
        self.drift.clear()
        self.exact.relearning.end()

    def _lapse(self) -> None:
        """Record that earlier predictions cannot be checked, because events that would explain them may be lost with a
        publisher.
        """
        self._lapses += 1
        self.drift.give_up(Difference.APPROXIMATE)

    def _lose(self, loss: str) -> None:
        self.loss = loss
        self.reports_before = self.exact.reported.clock
        self._lapse()
        self.exact.forget_events()
        self.exact.relearning.begin()

    def _prove(self) -> None:
        """Drop the blocks that reports added, if no batch was missed: the events describe these blocks better."""
        proved = self.connected and self.sequence.verified
        if proved and not self._proved:
            self._absent_requests = 0
            if not self.loss and not self.drift.found:
                self.exact.reported.bound(0)
        self._proved = proved

    # Reports of responses.

    def mark(self) -> CacheMark:
        view, eviction_log = self.exact, self.exact.eviction_log
        reports, orphans = view.reported.clock, view.orphans.added
        return CacheMark(
            self._generation, self._lapses, eviction_log.arrivals, eviction_log.departures, reports, orphans
        )

    def unheard(self) -> None:
        """Record that a self-test found blocks that events did not announce."""
        if not self._live_batches:
            self._unheard_hits += 1

    def served(self) -> None:
        if self.unproved:
            self._absent_requests += 1

    def report(self, chain: Sequence[int], cached_tokens: int, claim: PredictedHit | None) -> Difference | None:
        """Compare the hit of a request on `chain` with its prediction; return the reason of a difference."""
        view = self.exact
        hits = min(cached_tokens // view.block_size, len(chain))
        view.reported.clock += 1
        now = self.mark()
        placed = now if claim is None else claim.placed
        missed = hits > 0 and not view.holds(chain[hits - 1])
        if missed:
            self.unheard()
            view.relearning.touched()
        difference = None
        exact = self._proved and not self.loss
        if exact:
            # The GPU's events do not describe the blocks of slower tiers.
            missed = missed and not view.has_slower_tiers
            if claim is not None:
                self.drift.settle(placed, now, view)
                difference = self.drift.report(claim, cached_tokens, now, view)
        if (missed or view.reported or not exact or self.drift.found) and placed.generation == now.generation:
            view.learn(chain, hits, placed.reports, placed.departures, 0 if claim is None else placed.orphans)
        return difference

    # Relearning.

    @property
    def incomplete(self) -> bool:
        """Whether some cached blocks may be unknown, and the link is up so that announcements of them would arrive."""
        if not self.connected or self.silent or self.sequence.replaying:
            return False
        return bool(self.loss) or self.unproved

    def reserved(self, ticket_id: int, prompt: Prompt) -> None:
        """Record a placed request, and whether it may use unknown blocks."""
        if not self.incomplete:
            return
        view = self.exact
        chain, usable = prompt.usable_chain(view.block_size) if prompt.exact and not prompt.multiple else ((), 0)
        known = self._known_blocks(chain, usable)
        if not chain or view.relearning.may_find_more(chain, known, usable):
            view.relearning.opened(ticket_id, chain[:usable])

    def asks_again(self, ticket_id: int, now_s: float, blocks_per_s: float) -> bool:
        """Return whether a placed request should ask the worker to announce its cached blocks again."""
        return self.incomplete and self.exact.relearning.ask(ticket_id, now_s, blocks_per_s)

    def found(self, ticket_id: int, cached_tokens: int) -> None:
        chain = self.exact.relearning.chain_of(ticket_id)
        hits = min(cached_tokens // self.exact.block_size, len(chain))
        if chain and self._known_blocks(chain, hits) == hits:
            self.exact.relearning.seen(ticket_id)

    def _known_blocks(self, chain: Sequence[int], blocks: int) -> int:
        """Return how many of the first `blocks` of `chain` are cached according to events."""
        reported, holds = self.exact.reported, self.exact.holds
        for position in range(blocks):
            if chain[position] in reported or not holds(chain[position]):
                return position
        return blocks

    # Trust.

    @property
    def closed(self) -> bool:
        """Whether a match may jump ahead in a chain, because the known blocks are closed under prefixes."""
        return not self.loss and self.exact.closed and not self.sequence.assumed

    @property
    def heard(self) -> bool:
        return self._live_batches > 0

    @property
    def unproved(self) -> bool:
        """Whether it is unknown which batches were missed, and no replay runs. Either the link is down, or it brought
        neither event nor replay.
        """
        return not self.connected or not (self.sequence.verified or self.sequence.replaying)

    @property
    def informative(self) -> bool:
        if not self.begun or self.silent or (self.unproved and self._absent_requests >= ABSENT_REQUESTS):
            return False
        return self.batches > 0 or self.sequence.verified

    @property
    def silent(self) -> bool:
        """Whether blocks were found that no event announced, and no event came at all."""
        return not self._live_batches and self._unheard_hits > 0

    @property
    def sound(self) -> bool:
        """Whether the events alone would be trusted as EXACT, without the cost of composing the reason (`trust`)."""
        sequence = self.sequence
        heard = self.begun and self.connected and sequence.verified and not sequence.replaying and not self.silent
        return heard and not (self.loss or self.exact.doubts or self.drift.found or sequence.assumed)

    def statistics(self) -> dict[str, int]:
        return {
            **self.exact.statistics(),
            **self.sequence.statistics(),
            "decode_errors": self._decode_errors,
            **self.drift.statistics(),
        }

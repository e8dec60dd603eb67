"""A worker's event stream as a whole: decoding, sequence, view, and how far it can be trusted."""

from __future__ import annotations

from backends.vllm.events import WireError, decode_batch
from policies.view import Residency
from router.prefix.blocks import BlockIndex
from router.prefix.exact import ExactView
from router.prefix.sequence import EventSequence, Step
from router.prefix.view import Ingest, IngestOutcome


class PublishedView:
    """Takes published and replayed payloads, keeps an `ExactView`, and knows what it missed.

    After a loss that no replay can fill, what was known is dropped and learned again from then on: each block known
    was announced after the loss and not removed since, so a match is a lower bound. The view is exact again once the
    worker clears its cache or starts anew. While a replay runs or the link is down a match is the last known state.
    """

    __slots__ = ("_batches", "_connected", "_decode_errors", "_loss", "begun", "last_event_ts_s", "sequence", "view")

    def __init__(self, index: BlockIndex, block_size: int, capacity_blocks: int | None) -> None:
        self.view = ExactView(index, block_size, capacity_blocks)
        self.sequence = EventSequence()
        self.last_event_ts_s: float | None = None
        self.begun = False
        """The publisher was reached at least once."""
        self._connected = False
        self._loss = ""
        self._batches = 0
        self._decode_errors = 0

    def link_up(self) -> Ingest:
        """The subscription is connected."""
        self._connected = self.begun = True
        return self._do(self.sequence.link_up())

    def link_lost(self) -> None:
        """The subscription dropped."""
        self._connected = False
        self.sequence.link_lost()

    def ingest(self, seq: int, payload: bytes, replayed: bool) -> Ingest:
        """One batch, live or replayed."""
        self._connected = self.begun = True
        step = self.sequence.offer_replayed(seq, payload) if replayed else self.sequence.offer(seq, payload)
        return self._do(step)

    def replay_ended(self, ok: bool) -> Ingest:
        """A replay is complete, or will not be."""
        return self._do(self.sequence.replay_ended(ok))

    def _do(self, step: Step) -> Ingest:
        if step.restarted:
            self.view.clear()
            self._loss = ""
        if step.lost is not None:
            self.view.clear()
            first, after = step.lost
            self._loss = f"event batches {first} to {after - 1} were missed and could not be replayed"
        outcome = step.outcome
        for seq, payload in step.ready:
            if not self._apply(seq, payload):
                outcome = IngestOutcome.REJECTED
        return Ingest(outcome, step.replay_from)

    def _apply(self, seq: int, payload: bytes) -> bool:
        try:
            batch = decode_batch(payload)
        except WireError as error:
            self._decode_errors += 1
            self.view.clear()
            self._loss = f"event batch {seq} could not be read ({error})"
            return False
        self._batches += 1
        self.last_event_ts_s = batch.ts
        if self.view.apply(batch):
            self._loss = ""
            self.sequence.begun_anew()
        return True

    @property
    def closed(self) -> bool:
        """Matches may jump ahead in a chain: all of it is known to be closed under prefixes."""
        return not self._loss and self.view.closed and not self.sequence.assumed

    def trust(self) -> tuple[Residency, str]:
        """How far, and why."""
        sequence = self.sequence
        if not self._connected:
            return Residency.UNKNOWN, "no connection to the worker's KV event publisher"
        if sequence.replaying:
            return Residency.UNKNOWN, f"waiting for a replay of event batches from {sequence.next_seq} on"
        if not sequence.verified:
            return Residency.UNKNOWN, "no event since the connection was made, and no replay to tell what was missed"
        doubts = [*self.view.doubts.values()]
        if sequence.assumed:
            doubts.append("reconnected without a replay: only the batch numbers say that nothing was missed")
        if self._loss:
            known = f"{self.view.holdings.blocks} blocks learned since, exact after the next cache reset"
            return Residency.UNKNOWN, "; ".join([self._loss, *(doubts or [known])])
        if doubts:
            return Residency.APPROXIMATE, "; ".join(doubts)
        return Residency.EXACT, self._praise()

    def _praise(self) -> str:
        words = f"{self._batches} event batches applied"
        if self.sequence.replayed:
            words += f", {self.sequence.replayed} of them replayed"
        waiting = len(self.view.orphans)
        return f"{words}; {waiting} blocks wait for their parents" if waiting else words

    def statistics(self) -> dict[str, int]:
        """Counters since the view was made."""
        return {
            **self.view.statistics(),
            **self.sequence.statistics(),
            "batches": self._batches,
            "decode_errors": self._decode_errors,
        }

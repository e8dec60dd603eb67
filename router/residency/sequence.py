"""Sequence numbers of one publisher: the next one, gaps, and restarts."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from router.residency.view import IngestOutcome

PENDING_BYTES = 33_554_432
"""Live batches kept while a replay runs. If more arrive, the newest are dropped and requested again."""

_PENDING_BATCH_BYTES = 200
_RECENT_BATCHES = 256


@dataclass(slots=True)
class SequenceStep:
    """The next actions, in order: forget the view (`lost` or `restarted`), apply `ready`, request a replay from
    `replay_from`.
    """

    outcome: IngestOutcome
    ready: list[tuple[int, bytes]] = field(default_factory=list)
    replay_from: int | None = None
    lost: tuple[int, int] | None = None
    """First missing sequence number and the one after the last."""
    restarted: bool = False


class EventSequence:
    """Put the live and replayed batches of one publisher in order. Pure: no I/O."""

    def __init__(self) -> None:
        self.next_seq = 0
        self.replaying = False
        self.verified = False
        """Whether no batch before `next_seq` can have been missed."""
        self.assumed = False
        """Whether `verified` rests on the count alone: reconnected, no replay, and the next batch had the next
        number.
        """
        self.gaps = 0
        """How often batches were missing, whether or not a replay brought them."""
        self.restarts = 0
        self.replayed = 0
        self._recent: OrderedDict[int, int] = OrderedDict()
        self._begin()

    def _begin(self) -> None:
        self.next_seq = 0
        self.replaying = False
        self._last_live = -1
        self._asked_at = -1
        self._noticed = False
        self._overlap: int | None = None
        self._replayed_since: int | None = None
        self._discarding = False
        self._pending: dict[int, bytes] = {}
        self._pending_bytes = 0
        self._recent.clear()

    def link_up(self) -> SequenceStep:
        """Record a connection to the same or another publisher. Request the last applied batch and all batches after
        it.
        """
        self.verified = False
        self._last_live = -1
        self._replayed_since = None
        # Waiting batches came over the previous connection; a replay sends them again.
        self._pending.clear()
        self._pending_bytes = 0
        return self._ask_to_know(IngestOutcome.GAP)

    def forget_assumptions(self) -> None:
        self.assumed = False

    def link_lost(self) -> None:
        """Record a lost connection: batches may be missed from now on."""
        self.verified = False

    def offer(self, seq: int, payload: bytes) -> SequenceStep:
        if seq <= self._last_live or seq < self.next_seq:
            if self._contradicts(seq, payload) and not self._outrun(seq):
                return self._restart(seq, payload)
            self._last_live = max(seq, self._last_live)
            return SequenceStep(IngestOutcome.STALE)
        self._last_live = seq
        if self.replaying:
            return self._buffer(seq, payload, IngestOutcome.BUFFERED)
        if seq > self.next_seq:
            self.gaps += 1
            self._noticed = True
            self._buffer(seq, payload, IngestOutcome.BUFFERED)
            return (
                self._ask(IngestOutcome.GAP, self.next_seq) if self.verified else self._ask_to_know(IngestOutcome.GAP)
            )
        if not self.verified:
            self.verified = True
            self.assumed = self.assumed or seq > 0
        self._accept(seq, payload, step := SequenceStep(IngestOutcome.APPLIED))
        return step

    def offer_replayed(self, seq: int, payload: bytes) -> SequenceStep:
        if not self.replaying or self._discarding:
            return SequenceStep(IngestOutcome.STALE)
        if seq < self.next_seq:
            return self._offer_known(seq, payload)
        step = SequenceStep(IngestOutcome.APPLIED)
        if seq > self.next_seq or self._overlap is not None:
            # Without the last applied batch, these batches may come from another publisher.
            self._lose(seq, step)
        self.replayed += 1
        if self._replayed_since is None:
            self._replayed_since = seq
        self._accept(seq, payload, step)
        return step

    def _offer_known(self, seq: int, payload: bytes) -> SequenceStep:
        if self._contradicts(seq, payload):
            step = SequenceStep(IngestOutcome.RESTARTED)
            self._forget(step)
            # The rest of this replay starts in the middle. At its end, a replay from 0 is requested.
            self.replaying = self._discarding = True
            return step
        if seq == self._overlap:
            self._overlap = None
        return SequenceStep(IngestOutcome.STALE)

    def replay_ended(self, ok: bool) -> SequenceStep:
        if not self.replaying:
            return SequenceStep(IngestOutcome.STALE)
        if self._discarding and ok:
            self._discarding = False
            return self._ask(IngestOutcome.GAP, 0)
        step = SequenceStep(IngestOutcome.APPLIED)
        if self._overlap is not None and ok:
            # The last applied batch is always in its publisher's buffer, so this is another publisher.
            self._forget(step)
            return self._ask_again(step)
        self._discarding = False
        self._overlap = None
        progressed = self.next_seq > self._asked_at
        self._drain(step)
        if self._pending and ok and progressed:
            return self._ask_again(step)
        self.verified = self.verified or ok or bool(self._pending)
        while self._pending:
            self._lose(min(self._pending), step)
            self._drain(step)
        self.replaying = self._noticed = False
        return step

    def _ask_again(self, step: SequenceStep) -> SequenceStep:
        asked = self._ask(step.outcome, self.next_seq)
        step.replay_from = asked.replay_from
        return step

    def _ask_to_know(self, outcome: IngestOutcome) -> SequenceStep:
        """Request a replay that includes the last applied batch: if that batch differs, this is another publisher."""
        self._overlap = self.next_seq - 1 if self.next_seq else None
        return self._ask(outcome, max(0, self.next_seq - 1))

    def _ask(self, outcome: IngestOutcome, start: int) -> SequenceStep:
        self.replaying = True
        self._asked_at = self.next_seq
        return SequenceStep(outcome, replay_from=start)

    def _contradicts(self, seq: int, payload: bytes) -> bool:
        """Return whether a past number has another payload than before, or is too old to compare."""
        if seq in self._pending:
            return self._pending[seq] != payload
        known = self._recent.get(seq)
        return known is None or known != xxh3_64_intdigest(payload)

    def _outrun(self, seq: int) -> bool:
        """Return whether a replay brought `seq` before the live stream did, and all known batches agree."""
        since = self._replayed_since
        return since is not None and since <= seq and seq > self._last_live and seq not in self._recent

    def _restart(self, seq: int, payload: bytes) -> SequenceStep:
        step = SequenceStep(IngestOutcome.RESTARTED)
        self._forget(step)
        follow = self.offer(seq, payload)
        step.ready, step.replay_from = follow.ready, follow.replay_from
        return step

    def _forget(self, step: SequenceStep) -> None:
        step.restarted = True
        step.outcome = IngestOutcome.RESTARTED
        step.ready.clear()
        self.restarts += 1
        self.verified = self.assumed = False
        self._begin()

    def _lose(self, seq: int, step: SequenceStep) -> None:
        step.lost = (self.next_seq if self._overlap is None else self._overlap, seq)
        step.ready.clear()
        self._overlap = None
        self.next_seq = seq
        self.gaps += not self._noticed
        self._noticed = False

    def _buffer(self, seq: int, payload: bytes, outcome: IngestOutcome) -> SequenceStep:
        if self._pending_bytes + len(payload) <= PENDING_BYTES:
            self._pending[seq] = payload
            self._pending_bytes += len(payload) + _PENDING_BATCH_BYTES
        return SequenceStep(outcome)

    def _accept(self, seq: int, payload: bytes, step: SequenceStep) -> None:
        step.ready.append((seq, payload))
        self.next_seq = seq + 1
        self._recent[seq] = xxh3_64_intdigest(payload)
        if len(self._recent) > _RECENT_BATCHES:
            self._recent.popitem(last=False)

    def _drain(self, step: SequenceStep) -> None:
        for seq in [seq for seq in self._pending if seq < self.next_seq]:
            self._pending_bytes -= len(self._pending.pop(seq)) + _PENDING_BATCH_BYTES
        while self.next_seq in self._pending:
            payload = self._pending.pop(self.next_seq)
            self._pending_bytes -= len(payload) + _PENDING_BATCH_BYTES
            self._accept(self.next_seq, payload, step)

    def statistics(self) -> dict[str, int]:
        return {
            "next_seq": self.next_seq,
            "gaps": self.gaps,
            "restarts": self.restarts,
            "replayed_batches": self.replayed,
        }

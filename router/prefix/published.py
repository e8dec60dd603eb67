"""A worker's event stream as a whole: decoding, sequence, view, and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Sequence

from backends.vllm.events import WireError, decode_batch
from policies.view import Residency
from router.prefix.blocks import BlockIndex
from router.prefix.drift import Drift, Mark, Suspicion
from router.prefix.exact import ExactView
from router.prefix.sequence import EventSequence, Step
from router.prefix.view import Ingest, IngestOutcome

ABSENT_REQUESTS = 8
"""Requests served without word from the publisher before what it told last counts for less than a model."""

MODELLED = "its cache is modelled"


class PublishedView:
    """Takes published and replayed payloads, keeps an `ExactView`, and knows what it missed.

    After a loss that no replay can fill, what events told is dropped and learned again from then on, from events and
    from the ``cached_tokens`` that responses report: a match is about a lower bound. The view is exact again once the
    worker clears its cache or starts anew. While a replay runs or the link is down a match is the last known state.

    Reports are compared with an exact view, too: where they differ and nothing explains it, it is repaired, and when
    that goes on, called approximate (`drift`).
    """

    __slots__ = (
        "_absent_requests",
        "_batches",
        "_connected",
        "_decode_errors",
        "_generation",
        "_live_batches",
        "_loss",
        "_proved",
        "_reports_before",
        "_unheard_hits",
        "address",
        "begun",
        "drift",
        "last_event_ts_s",
        "sequence",
        "topic",
        "view",
    )

    def __init__(self, index: BlockIndex, block_size: int, capacity_blocks: int | None) -> None:
        self.view = ExactView(index, block_size, capacity_blocks)
        self.sequence = EventSequence()
        self.drift = Drift()
        self.address = ""
        self.topic = ""
        self.last_event_ts_s: float | None = None
        self.begun = False
        """The publisher was reached at least once."""
        self._connected = False
        self._proved = False
        self._loss = ""
        self._reports_before = 0
        self._generation = 0
        self._batches = 0
        self._live_batches = 0
        self._unheard_hits = 0
        self._absent_requests = 0
        self._decode_errors = 0

    def follow(self, address: str, topic: str) -> None:
        """The publisher is at `address` and subscribed to by `topic`."""
        if (address, topic) != (self.address, self.topic):
            self.address, self.topic = address, topic
            self._live_batches = self._unheard_hits = 0

    def link_up(self) -> Ingest:
        """The subscription is connected."""
        self._connected = self.begun = True
        return self._do(self.sequence.link_up())

    def link_lost(self) -> None:
        """The subscription dropped."""
        self._connected = self._proved = False
        self.sequence.link_lost()

    def ingest(self, seq: int, payload: bytes, replayed: bool) -> Ingest:
        """One batch, live or replayed."""
        self._connected = self.begun = True
        if replayed:
            return self._do(self.sequence.offer_replayed(seq, payload))
        self._live_batches += 1
        return self._do(self.sequence.offer(seq, payload))

    def replay_ended(self, ok: bool) -> Ingest:
        """A replay is complete, or will not be."""
        return self._do(self.sequence.replay_ended(ok))

    def _do(self, step: Step) -> Ingest:
        if step.restarted:
            self.view.clear()
            self._begin_anew()
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
        self._batches += 1
        self.last_event_ts_s = batch.ts
        if self.view.apply(batch):
            self._begin_anew()
            self.sequence.begun_anew()
        return True

    def _begin_anew(self) -> None:
        self._loss = ""
        self._generation += 1
        self.drift.clear()

    def _lose(self, loss: str) -> None:
        self._loss = loss
        self._reports_before = self.view.reported.clock
        self._generation += 1
        self.view.forget_events()

    def _prove(self) -> None:
        """Where nothing was missed, what reports taught meanwhile is told better by the events."""
        proved = self._connected and self.sequence.verified
        if proved and not self._proved:
            self._absent_requests = 0
            if not self._loss and not self.drift.found:
                self.view.reported.bound(0)
        self._proved = proved

    # what responses report

    def mark(self) -> Mark:
        """Where the view stands, for a request that is being booked."""
        return Mark(self._generation, self.view.removed_blocks, self.view.reported.clock, self._batches)

    def unheard(self) -> None:
        """A trial found blocks that events should have told of."""
        if not self._live_batches:
            self._unheard_hits += 1

    def served(self) -> None:
        """A request with token ids was served."""
        if self.unproved:
            self._absent_requests += 1

    def report(self, chain: Sequence[int], hits: int, start: int, booked: Mark | None) -> None:
        """Of `chain` a request found `hits` blocks; `start` were believed to be there when it was `booked`."""
        view = self.view
        view.reported.clock += 1
        now = self.mark()
        for claimed in self.drift.settle(now, view.reported.__contains__):
            view.holdings.thin(claimed)
        missed = hits > 0 and not view.holds(chain[hits - 1])
        if missed:
            self.unheard()
        if self._proved and not self._loss:
            # What a slower tier held is no business of the GPU's events.
            missed = missed and not view.has_slower_tiers
            self._judge(chain, hits, start, booked, now, missed)
        if missed or view.reported or not self._proved or self._loss or self.drift.found:
            view.learn(chain, hits, now.reports if booked is None else booked.reports)

    def _judge(self, chain: Sequence[int], hits: int, start: int, booked: Mark | None, now: Mark, missed: bool) -> None:
        if booked is not None and hits < start:
            self.drift.suspect(Suspicion(booked, now, chain[hits:start], None))
        elif missed:
            self.drift.suspect(Suspicion(booked or now, now, (), chain[hits - 1]))
        else:
            self.drift.agreed()

    # trust

    @property
    def closed(self) -> bool:
        """Matches may jump ahead in a chain: all of it is known to be closed under prefixes."""
        return not self._loss and self.view.closed and not self.sequence.assumed

    @property
    def heard(self) -> bool:
        """Batches have come in live."""
        return self._live_batches > 0

    @property
    def unproved(self) -> bool:
        """Nothing says what was missed, and nobody is being asked: no link, or neither an event nor a replay on it."""
        return not self._connected or not (self.sequence.verified or self.sequence.replaying)

    @property
    def tells(self) -> bool:
        """What events told is worth more than a model of the cache."""
        if not self.begun or self._silent or (self.unproved and self._absent_requests >= ABSENT_REQUESTS):
            return False
        return self._batches > 0 or self.sequence.verified

    @property
    def _silent(self) -> bool:
        return not self._live_batches and self._unheard_hits > 0

    def trust(self) -> tuple[Residency, str]:
        """How far, and why."""
        at = f" at {self.address}" if self.address else ""
        if not self.begun:
            return Residency.APPROXIMATE, f"KV events cannot be reached{at}; {MODELLED}"
        if self._connected and self.sequence.replaying:
            return Residency.UNKNOWN, f"waiting for a replay of event batches from {self.sequence.next_seq} on"
        if self._connected and self._silent:
            return Residency.APPROXIMATE, f"{self._suspected()}; {MODELLED}"
        if self.unproved:
            reason = "no event since the connection was made, and no replay to tell what was missed"
            if not self._connected:
                reason = f"no connection to the worker's KV event publisher{at}"
            return (Residency.UNKNOWN, reason) if self.tells else (Residency.APPROXIMATE, f"{reason}; {MODELLED}")
        return self._trust_in_order()

    def _trust_in_order(self) -> tuple[Residency, str]:
        doubts = [*self.view.doubts.values()]
        if self.sequence.assumed:
            doubts.append("reconnected without a replay: only the batch numbers say that nothing was missed")
        if self._loss:
            reports = self.view.reported.clock - self._reports_before
            learned = f"{self.view.holdings.blocks} blocks learned since, from events and {reports} reports"
            known = f"{learned}; exact after the next cache reset"
            return Residency.APPROXIMATE, "; ".join([self._loss, *(doubts or [known])])
        if self.drift.found:
            doubts.append(f"{self.drift.found}; repaired by reports, exact after the next cache reset")
        if doubts:
            return Residency.APPROXIMATE, "; ".join(doubts)
        return Residency.EXACT, self._praise()

    def _suspected(self) -> str:
        asked = f"is the topic {self.topic!r} right?" if self.topic else "is it this worker's publisher?"
        return f"linked to {self.address or 'its publisher'}, but no batch arrived: {asked}"

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
            "reports": self.view.reported.clock,
            "mismatches": self.drift.mismatches,
        }

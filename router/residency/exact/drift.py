"""Compare the cached tokens that a worker reports with its events, request by request, and explain the differences."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from router.residency.exact.difference import Difference
from router.residency.exact.eviction_log import EvictionLog
from router.residency.exact.exact import ExactCache

WINDOW = 128
"""Number of latest reports considered."""
TOLERATED = 7
"""How many reports of the window may stay unexplained before the view is called approximate."""
ROUNDS = 32
"""Rounds to wait for an explanation. A round ends when a request placed after its start has reported.

At any load, the wait is at least 32 times as long as a request takes. Events that come later count as lost. A count of
reports would not give such a bound, because one step may end any number of requests.
"""
PENDING = 1_024
"""Differences that may wait at once. Beyond that the oldest is judged early."""


class CacheMark(msgspec.Struct, frozen=True, gc=False):
    """Position in the history of a view: counts of restarts, lapses, arrivals, departures, reports, and runs with
    unknown parents.
    """

    generation: int
    lapses: int
    arrivals: int
    departures: int
    reports: int
    orphans: int


class PredictedHit(msgspec.Struct, frozen=True):
    """The predicted hit of a request on `chain`: `claimed` blocks, of which the first `start` were cached.

    The rest were blocks of requests in flight. The request can use at most `usable` blocks.
    """

    ticket_id: int
    placed: CacheMark
    block_size: int
    chain: Sequence[int]
    usable: int
    start: int
    claimed: int


class DisputedHit:
    """A prediction that the report contradicts. It is explained if the reported number was true at some moment since
    the decision.

    At such a moment `hits` blocks were cached and the next block was not, by the order of the events. `seen` says
    whether one was found, and `look` continues the search where it stopped. No moment explains a hit on part of a
    block, or on more blocks than the engine's own cache can hold.
    """

    def __init__(self, claim: PredictedHit, hits: int, reports: int) -> None:
        self.claim = claim
        self.hits = hits
        self.rounds = 0
        self.round_began = reports
        self._last = claim.chain[hits - 1] if 0 < hits <= claim.usable else None
        self._next = claim.chain[hits] if hits < claim.usable else None
        self._there: dict[int | None, bool] = {self._last: hits <= claim.start, self._next: hits < claim.start}
        self._arrivals, self._departures = claim.placed.arrivals, claim.placed.departures
        self._possible = hits <= claim.usable and hits != claim.claimed
        self.seen = self._possible and self._agrees()

    def look(self, eviction_log: EvictionLog) -> bool:
        if self.seen or not self._possible:
            return self.seen
        if not eviction_log.reaches(self._arrivals, self._departures):
            self.seen = True  # The log no longer reaches back to the decision, so the prediction may have been true.
        wanted = [block_hash for block_hash in (self._last, self._next) if block_hash is not None]
        for change in eviction_log.changes(wanted, self._arrivals, self._departures):
            for block_hash, there in change.items():
                self._there[block_hash] = there
            self.seen = self.seen or self._agrees()
        self._arrivals, self._departures = eviction_log.arrivals, eviction_log.departures
        return self.seen

    def _agrees(self) -> bool:
        """Return whether the last block that was found is cached now, and the block after it is not."""
        last, following = self._last, self._next
        return (last is None or self._there[last]) and (following is None or not self._there[following])

    @property
    def reason(self) -> Difference:
        if self.hits > self.claim.claimed:
            return Difference.SCHEDULED_SINCE
        return Difference.EVICTED_WHILE_QUEUED if self.hits < self.claim.start else Difference.RESERVED_NOT_SCHEDULED


class DriftMonitor:
    """Judge reports. Once there were too many unexplained differences, `found` describes the latest one and stays set.

    Each difference is explained at once or becomes `Difference.PENDING`. The verdict of a pending difference is
    appended to `settled` later, exactly once.
    """

    def __init__(self) -> None:
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        self._pending: deque[DisputedHit] = deque()
        self.settled: list[tuple[int, Difference]] = []
        """Ticket and verdict of each settled difference; the owner takes them out."""
        self.found = ""
        self.mismatches = 0

    def report(self, claim: PredictedHit, cached_tokens: int, now: CacheMark, view: ExactCache) -> Difference | None:
        """Judge a report of `cached_tokens`; None if it agrees with the prediction."""
        difference = None
        if cached_tokens != claim.claimed * claim.block_size:
            dispute = DisputedHit(claim, cached_tokens // claim.block_size, now.reports)
            difference = _between(claim.placed, now) or _explained(dispute, view)
            if difference is None:
                self._wait(dispute, view)
                return Difference.PENDING
        self._recent.append(False)
        return difference

    def _wait(self, dispute: DisputedHit, view: ExactCache) -> None:
        self._pending.append(dispute)
        if len(self._pending) > PENDING:
            oldest = self._pending.popleft()
            self._close(oldest, _explained(oldest, view) or Difference.OTHER, view)

    def settle(self, placed: CacheMark, now: CacheMark, view: ExactCache) -> None:
        """Judge the waiting differences that are old enough, after a request placed at `placed` has reported."""
        if not self._pending:
            return  # the usual case
        waiting: deque[DisputedHit] = deque()
        while self._pending:
            dispute = self._pending.popleft()
            difference = None
            if placed.reports >= dispute.round_began:
                dispute.rounds += 1
                dispute.round_began = now.reports
                difference = _explained(dispute, view)
                if difference is None and dispute.rounds >= ROUNDS:
                    difference = Difference.OTHER
            if difference is None:
                waiting.append(dispute)
            else:
                self._close(dispute, difference, view)
        self._pending = waiting

    def _close(self, dispute: DisputedHit, difference: Difference, view: ExactCache) -> None:
        self.settled.append((dispute.claim.ticket_id, difference))
        wrong = difference is Difference.OTHER
        self._recent.append(wrong)
        if not wrong:
            return
        self.mismatches += 1
        # A missing block has been computed again by now, so only its further copies are missing.
        view.block_copies.thin(dispute.claim.chain[dispute.hits : dispute.claim.start])
        wrongs = sum(self._recent)
        if wrongs > TOLERATED:
            self.found = f"{wrongs} of the last {len(self._recent)} reports differed from its events"

    def give_up(self, difference: Difference) -> None:
        """Settle all pending differences with `reason`, because they cannot be judged any more."""
        self.settled += [(dispute.claim.ticket_id, difference) for dispute in self._pending]
        self._pending.clear()

    def clear(self) -> None:
        self.give_up(Difference.CLEARED)
        self._recent.clear()
        self.found = ""

    def statistics(self) -> dict[str, int]:
        return {"mismatches": self.mismatches, "pending_differences": len(self._pending)}


def _between(placed: CacheMark, now: CacheMark) -> Difference | None:
    """Return the difference that a change of the whole view explains, if any."""
    if placed.generation != now.generation:
        return Difference.CLEARED
    return Difference.APPROXIMATE if placed.lapses != now.lapses else None


def _explained(dispute: DisputedHit, view: ExactCache) -> Difference | None:
    if dispute.look(view.eviction_log):
        return dispute.reason
    more = dispute.hits >= dispute.claim.claimed
    return Difference.SLOWER_TIER if more and view.has_slower_tiers else None

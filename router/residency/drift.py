"""Whether what a worker reports agrees with what its events told, request by request, and what explains it if not."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from router.residency.difference import Difference
from router.residency.eviction_log import EvictionLog
from router.residency.exact import ExactView

WINDOW = 128
"""Reports looked back on."""
TOLERATED = 7
"""Of these, so many may go unexplained before the view is called approximate."""
ROUNDS = 32
"""Rounds to wait for what explains a difference: a round is over when a request booked after its start has reported.

That is at least so many times as long as a request takes, whatever the load; events that come later are as good as
lost. Reports alone would not do: a step may end any number of requests at once."""
PENDING = 1_024
"""Differences waited for at once; the oldest is judged early beyond that."""


class ViewMark(NamedTuple):
    """Where a view stood: times it began anew, lapses in what it was told, blocks arrived and departed, reports, and
    runs of blocks whose parent was not known."""

    generation: int
    lapses: int
    arrivals: int
    departures: int
    reports: int
    orphans: int


class PredictedHit(NamedTuple):
    """What a booked request was predicted to find of `chain`: `claimed` blocks, the first `start` of them resident.

    The rest of them were those of requests in flight. It can use no more than `usable`.
    """

    ticket_id: int
    booked: ViewMark
    block_size: int
    chain: Sequence[int]
    usable: int
    start: int
    claimed: int


class DisputedHit:
    """A claim whose report differed: was there a moment since the decision when it would have been true?

    That is when `hits` blocks were there and the next one was not, by events in their order. `seen` says whether there
    was such a moment so far; `look` goes on from where it stopped. Where more was found than the engine's own cache can
    have, or part of a block, no moment explains it.
    """

    __slots__ = (
        "_arrivals",
        "_departures",
        "_last",
        "_next",
        "_possible",
        "_there",
        "claim",
        "hits",
        "round_began",
        "rounds",
        "seen",
    )

    def __init__(self, claim: PredictedHit, hits: int, reports: int) -> None:
        self.claim = claim
        self.hits = hits
        self.rounds = 0
        self.round_began = reports
        self._last = claim.chain[hits - 1] if 0 < hits <= claim.usable else None
        self._next = claim.chain[hits] if hits < claim.usable else None
        self._there: dict[int | None, bool] = {self._last: hits <= claim.start, self._next: hits < claim.start}
        self._arrivals, self._departures = claim.booked.arrivals, claim.booked.departures
        self._possible = hits <= claim.usable and hits != claim.claimed
        self.seen = self._possible and self._agrees()

    def look(self, eviction_log: EvictionLog) -> bool:
        """Go through what events have told since."""
        if self.seen or not self._possible:
            return self.seen
        if not eviction_log.reaches(self._arrivals, self._departures):
            self.seen = True  # so much came and went that nobody can say it was not so
        wanted = [block_hash for block_hash in (self._last, self._next) if block_hash is not None]
        for change in eviction_log.changes(wanted, self._arrivals, self._departures):
            for block_hash, there in change.items():
                self._there[block_hash] = there
            self.seen = self.seen or self._agrees()
        self._arrivals, self._departures = eviction_log.arrivals, eviction_log.departures
        return self.seen

    def _agrees(self) -> bool:
        last, following = self._last, self._next
        return (last is None or self._there[last]) and (following is None or not self._there[following])

    @property
    def reason(self) -> Difference:
        """What explains it once it was seen."""
        if self.hits > self.claim.claimed:
            return Difference.SCHEDULED_SINCE
        return Difference.EVICTED_WHILE_QUEUED if self.hits < self.claim.start else Difference.RESERVED_NOT_SCHEDULED


class DriftMonitor:
    """Judges reports. `found` says what was seen once too many went unexplained; it stays said.

    Each claim that differs is either explained at once or becomes `Difference.PENDING`; its verdict is put on `settled`
    later, exactly once.
    """

    __slots__ = ("_pending", "_recent", "found", "mismatches", "settled")

    def __init__(self) -> None:
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        self._pending: deque[DisputedHit] = deque()
        self.settled: list[tuple[int, Difference]] = []
        """Ticket and verdict, for the owner to take away."""
        self.found = ""
        self.mismatches = 0

    def report(self, claim: PredictedHit, cached_tokens: int, now: ViewMark, view: ExactView) -> Difference | None:
        """A request found `cached_tokens`; None if that is what was claimed."""
        difference = None
        if cached_tokens != claim.claimed * claim.block_size:
            dispute = DisputedHit(claim, cached_tokens // claim.block_size, now.reports)
            difference = _between(claim.booked, now) or _explained(dispute, view)
            if difference is None:
                self._wait(dispute, view)
                return Difference.PENDING
        self._recent.append(False)
        return difference

    def _wait(self, dispute: DisputedHit, view: ExactView) -> None:
        self._pending.append(dispute)
        if len(self._pending) > PENDING:
            oldest = self._pending.popleft()
            self._close(oldest, _explained(oldest, view) or Difference.OTHER, view)

    def settle(self, booked: ViewMark, now: ViewMark, view: ExactView) -> None:
        """A request booked at `booked` has reported: judge what that makes old enough."""
        waiting: deque[DisputedHit] = deque()
        while self._pending:
            dispute = self._pending.popleft()
            difference = None
            if booked.reports >= dispute.round_began:
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

    def _close(self, dispute: DisputedHit, difference: Difference, view: ExactView) -> None:
        self.settled.append((dispute.claim.ticket_id, difference))
        wrong = difference is Difference.OTHER
        self._recent.append(wrong)
        if not wrong:
            return
        self.mismatches += 1
        # What was not there has been computed again by now; copies beyond that one are not there either.
        view.block_copies.thin(dispute.claim.chain[dispute.hits : dispute.claim.start])
        wrongs = sum(self._recent)
        if wrongs > TOLERATED:
            self.found = f"{wrongs} of the last {len(self._recent)} reports differed from what its events had told"

    def give_up(self, difference: Difference) -> None:
        """What is pending cannot be judged any more, for this reason."""
        self.settled += [(dispute.claim.ticket_id, difference) for dispute in self._pending]
        self._pending.clear()

    def clear(self) -> None:
        """The view begins anew."""
        self.give_up(Difference.CLEARED)
        self._recent.clear()
        self.found = ""

    def statistics(self) -> dict[str, int]:
        """Differences that nothing explained, and those that something still may."""
        return {"mismatches": self.mismatches, "pending_differences": len(self._pending)}


def _between(booked: ViewMark, now: ViewMark) -> Difference | None:
    """Whether something befell the whole view."""
    if booked.generation != now.generation:
        return Difference.CLEARED
    return Difference.APPROXIMATE if booked.lapses != now.lapses else None


def _explained(dispute: DisputedHit, view: ExactView) -> Difference | None:
    if dispute.look(view.eviction_log):
        return dispute.reason
    more = dispute.hits >= dispute.claim.claimed
    return Difference.SLOWER_TIER if more and view.has_slower_tiers else None

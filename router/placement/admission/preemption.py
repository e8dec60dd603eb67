"""Requests that give way to one of an earlier class: before the first byte of their answer, or in any state if their
class is preemptible.

One request leaves its worker if that brings the other one there at once. Of those that may, it is one whose answer has
not begun, then one of the last class, then the newest, on which the least work was spent. To prevent a request from
going back and forth, it gives way `MOST_TIMES` times, and a class that has waited until it starves does not. Waits
below `WORTH_S` are no reason, because they end sooner than a lost prefill is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Final, Generic, TypeVar

from policies.view import WorkerId
from router.placement.admission.classes import Claim, RequestClass
from router.placement.admission.cost import Cost
from router.placement.admission.lines import Waiting
from router.placement.admission.queue import AdmissionQueue
from router.placement.admission.room import AheadOnWorkers, ClassPart, Room
from router.placement.fleet.endpoints import Candidate
from router.placement.load.running import ReservationStage
from router.placement.tickets import Ticket

T = TypeVar("T")
MOST_TIMES: Final = 2
WORTH_S: Final = 0.05
_LOOKED_AT: Final = 8


@dataclass(slots=True, eq=False)
class Sent(Generic[T]):
    """A request that went to a worker, and what it was charged. `waited` is its place, if it had to wait for it."""

    item: T
    queue: AdmissionQueue[Any]
    claim: Claim
    cost: Cost
    ticket: Ticket
    waited: Waiting[Any] | None

    def place(self) -> Waiting[T]:
        """Return its place in the queue: the one that it had, or that of its arrival."""
        arrived_s = self.ticket.request.arrived_s
        if self.waited is None:
            self.waited = self.queue.waiting(self.item, self.claim, self.cost, arrived_s, arrived_s)
        return self.waited

    @property
    def gave_way(self) -> int:
        return 0 if self.waited is None else self.waited.gave_way

    @property
    def begun(self) -> bool:
        return self.ticket.reservation.stage is not ReservationStage.PREFILL


class Preemption(Generic[T]):
    """The requests that may give way, by worker. `classes` are in the order in which they go first."""

    def __init__(self, room: Room, loads: AheadOnWorkers, classes: Sequence[RequestClass], limit: int) -> None:
        """`limit` is the most requests of a worker; 0 for none."""
        self._room = room
        self._loads = loads
        self._limit = limit
        self._places = {one.name: (not one.share, place) for place, one in enumerate(classes)}
        self._sent: dict[WorkerId, dict[int, Sent[T]]] = {}

    def __bool__(self) -> bool:
        return bool(self._sent)

    def sent(self, one: Sent[T]) -> None:
        self._sent.setdefault(one.ticket.candidate.id, {})[one.ticket.id] = one

    def began(self, one: Sent[T]) -> None:
        """Note the first token of a request's answer."""
        if not one.claim.of.preemptible:
            self.stays(one)

    def stays(self, one: Sent[T]) -> None:
        """Note that a request does not give way any more, or has ended."""
        worker = one.ticket.candidate.id
        there = self._sent.get(worker)
        if there is not None and there.pop(one.ticket.id, None) is not None and not there:
            del self._sent[worker]

    def victim(
        self, claim: Claim, queue: AdmissionQueue[T], found: Iterable[tuple[Candidate, int]], now_s: float
    ) -> Sent[T] | None:
        """Return a request that makes room for one of `claim` on one of the workers `found`, the best one first.

        Each comes with the uncached tokens that the request has there.
        """
        if not self._sent:
            return None
        part = queue.part(claim, now_s)
        for candidate, uncached_tokens in found:
            there = self._sent.get(candidate.id)
            if there and self._lacks_room(part, candidate, uncached_tokens, now_s):
                may = [one for one in there.values() if self._may(one, claim, queue, now_s)]
                for one in nsmallest(_LOOKED_AT, may, key=self._order):
                    if self._helps(one, part, candidate, uncached_tokens, now_s):
                        return one
        return None

    def _order(self, one: Sent[T]) -> tuple[bool, bool, int, float]:
        last, place = self._places[one.claim.of.name]
        return one.begun, not last, -place, -one.ticket.reservation.at_s

    def _may(self, one: Sent[T], claim: Claim, queue: AdmissionQueue[T], now_s: float) -> bool:
        of, waited_s = one.claim.of, now_s - one.ticket.request.arrived_s
        return (
            (not one.begun or of.preemptible)
            and one.gave_way < MOST_TIMES
            and waited_s < one.claim.longest_wait_s
            and (bool(of.share) or waited_s < of.starvation_s)
            and self._places[claim.of.name] < self._places[of.name]
            and queue.goes_before(claim.of, of)
        )

    def _lacks_room(self, part: ClassPart, candidate: Candidate, uncached_tokens: int, now_s: float) -> bool:
        missing_s = self._room.missing_s(part, self._loads.ahead(candidate, now_s), candidate, uncached_tokens)
        return missing_s >= WORTH_S or self._over_limit(candidate) >= 0

    def _over_limit(self, candidate: Candidate) -> int:
        """Return by how many requests the worker is above its limit; -1 below it."""
        return self._loads.of(candidate).reserved().running_requests - self._limit if self._limit else -1

    def _helps(self, one: Sent[T], part: ClassPart, candidate: Candidate, uncached_tokens: int, now_s: float) -> bool:
        without = self._loads.ahead(candidate, now_s, (one.ticket.reservation,))
        missing_s = self._room.missing_s(part, without, candidate, uncached_tokens)
        return not missing_s and self._over_limit(candidate) <= 0


LeavesWorker = Callable[[Sent[T], Callable[[bool], None]], bool]
"""Ends the attempt of a request that gives way, if it still can. Before that it calls the function: with True if the
request waits again, and with False if its answer has begun, so that it ends or goes on elsewhere."""

"""What admission would do with requests that are all sent at once: a dry run on live traffic.

Each request is judged as it is placed. One that would wait, or would be refused, is taken out of the load that the
others find, although its worker has it; one that waits counts there from its turn on. What stays unlike admission: a
request keeps the worker that it really has, refused ones use real time of their workers, so first tokens come later,
and its callers do not come again.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Final

from policies.view import WorkerId
from router.placement.admission.admission import Admission
from router.placement.admission.classes import Claim, RequestClass
from router.placement.admission.preemption import Preemption, Sent
from router.placement.admission.room import Room
from router.placement.dispatcher import Dispatcher
from router.placement.fleet.endpoints import Candidate
from router.placement.fleet.fleet import Fleet
from router.placement.load.fleet_load import AheadOfRequest, WorkerLoads
from router.placement.load.running import LoadReservation
from router.placement.ticket_life import Tickets
from router.placement.tickets import Ticket

OUTCOMES: Final = ("sent", "waits", "refused", "expires", "gives_way")
"""Sent at once, waits for its turn, is refused at arrival, is refused after its wait, gives way to an earlier class."""


class LoadsWithout:
    """The loads of a fleet without requests that would not be there yet."""

    def __init__(self, loads: WorkerLoads) -> None:
        self._loads = loads
        self._absent: dict[WorkerId, dict[LoadReservation, None]] = {}
        self.of = loads.of

    def ahead(self, candidate: Candidate, now_s: float, without: Collection[LoadReservation] = ()) -> AheadOfRequest:
        absent = self._absent.get(candidate.id)
        return self._loads.ahead(candidate, now_s, (*absent, *without) if absent else without)

    def leave_out(self, ticket: Ticket) -> None:
        self._absent.setdefault(ticket.candidate.id, {})[ticket.reservation] = None

    def put_back(self, ticket: Ticket) -> None:
        absent = self._absent.get(ticket.candidate.id, {})
        absent.pop(ticket.reservation, None)
        if not absent:
            self._absent.pop(ticket.candidate.id, None)


class ShadowAdmission(Admission[int]):
    """Judges placed requests, by the ids of their tickets. `counts` are by class and outcome."""

    def __init__(
        self, classes: list[RequestClass], dispatcher: Dispatcher, fleet: Fleet, loads: WorkerLoads, tickets: Tickets
    ) -> None:
        super().__init__(classes, dispatcher, fleet, loads, tickets, Random())
        self._without = LoadsWithout(loads)
        self._room = Room(self._without, classes)
        self._preemption = Preemption(self._room, self._without, classes, 0)
        self._judged: dict[int, Sent[int]] = {}
        """The requests that run, by ticket."""
        self.counts = {(one.name, outcome): 0 for one in classes for outcome in OUTCOMES}

    def judge(self, ticket: Ticket, claim: Claim, now_s: float) -> str:
        """Count what would have become of a request that was just placed; return its outcome."""
        queue = self.queue(self.pool(ticket.request))
        cost = self._cost(ticket.request, ticket.record.fleet, ticket.candidate.id)
        self._judged[ticket.id] = one = Sent(ticket.id, queue, claim, cost, ticket, None)
        self._without.leave_out(ticket)
        self._catch_up(now_s)
        workers = len(ticket.record.fleet)
        if not queue and (self._fits(one, now_s) or self._takes_place(one, now_s)):
            self._sends(one, now_s)
            outcome = "sent"
        elif queue.refusal(claim, cost, workers, now_s) is not None:
            outcome = "refused"
        else:
            one.waited = queue.enter(ticket.id, claim, cost, ticket.request.arrived_s, now_s, workers)
            self._waits_in[ticket.id] = queue
            self._catch_up(now_s)
            outcome = "waits" if ticket.id in self._waits_in else "sent"
        self.counts[claim.of.name, outcome] += 1
        return outcome

    def _catch_up(self, now_s: float) -> None:
        for late in self.expired(now_s):
            self.counts[late.claim.of.name, "expires"] += 1
        self.turn(now_s, lambda ticket_id: self._offered(self._judged[ticket_id], now_s))

    def _offered(self, one: Sent[int], now_s: float) -> None:
        self._worker = None
        if self._fits(one, now_s) or (self._first == one.item and self._takes_place(one, now_s)):
            self.leave(one.item, now_s)
            self._sends(one, now_s)
            self._worker = one.ticket.candidate

    def _fits(self, one: Sent[int], now_s: float) -> bool:
        ticket, part = one.ticket, one.queue.part(one.claim, now_s)
        return self._room.has(part, ticket.candidate, ticket.reservation.uncached_tokens, now_s)

    def _takes_place(self, one: Sent[int], now_s: float) -> bool:
        found = [(one.ticket.candidate, one.ticket.reservation.uncached_tokens)]
        victim = self._preemption.victim(one.claim, one.queue, found, now_s)
        if victim is None:
            return False
        self._preemption.stays(victim)
        self.counts[victim.claim.of.name, "gives_way"] += 1
        self._without.leave_out(victim.ticket)
        if not victim.begun:
            del self._running[victim.item]
            victim.queue.settle(victim.claim, victim.cost.seconds, 0.0)
            victim.queue.take_back(victim.place(), victim.cost.seconds, now_s)
            self._waits_in[victim.item] = victim.queue
        return True

    def _sends(self, one: Sent[int], now_s: float) -> None:
        self._without.put_back(one.ticket)
        one.queue.charge(one.claim, one.cost.seconds, now_s)
        self._running[one.item] = one
        self._preemption.sent(one)

    def _seen(self, ticket: Ticket) -> None:
        super()._seen(ticket)
        if ticket.ended and (one := self._judged.pop(ticket.id, None)) is not None:
            self.leave(one.item, ticket.record.at_s + (ticket.record.duration_s or 0.0))
            self._without.put_back(ticket)
            self._preemption.stays(one)

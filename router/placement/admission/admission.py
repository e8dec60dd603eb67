"""Admission over all models: what a driver asks at arrival, at each chance for room, and at each end."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random
from typing import Any, Generic, TypeVar

import msgspec

from policies.view import FleetView, WorkerId
from router.placement.admission.classes import Claim, RequestClass
from router.placement.admission.cost import Cost, cost_of
from router.placement.admission.lines import Waiting
from router.placement.admission.prediction import EarlyRefusal
from router.placement.admission.preemption import LeavesWorker, Preemption, Sent
from router.placement.admission.queue import AdmissionQueue
from router.placement.admission.room import ClassPart, Room
from router.placement.decision_log.decisions import DecisionRecord
from router.placement.dispatcher import Dispatcher
from router.placement.fleet.endpoints import Candidate
from router.placement.fleet.fleet import Fleet
from router.placement.load.fleet_load import WorkerLoads
from router.placement.request import Request
from router.placement.ticket_life import Tickets
from router.placement.tickets import NoRoom, Queued, Reject, Ticket

T = TypeVar("T", bound=Hashable)
P = TypeVar("P")
MODELS_KEPT = 64
"""Models with a queue. Idle ones beyond are forgotten."""
_SHORTEST_TURN_S = 0.002
_LONGEST_TURN_S = 0.05
"""When a turn follows although nothing has ended: room also comes as time passes."""
_HOME_SHARE = 0.25
"""The part of a prompt that a worker must hold to be its home."""


@dataclass(slots=True, frozen=True)
class Waits:
    """The request waits: it is offered in a `turn`, or expires."""


WAITS = Waits()


class Admission(Generic[T]):
    """The queues of all models, and the charges of the requests that run.

    `T` is the driver's request. The driver calls `ask` at arrival, `turn` when there may be room, and in a turn `ask`
    again for each offered request. Ends come from the tickets. Requests give way to others if the driver can end an
    attempt, with `leaves_worker`.
    """

    def __init__(
        self,
        classes: Sequence[RequestClass],
        dispatcher: Dispatcher,
        fleet: Fleet,
        loads: WorkerLoads,
        tickets: Tickets,
        rng: Random,
        leaves_worker: LeavesWorker[T] | None = None,
    ) -> None:
        self._classes: Mapping[str, RequestClass] = {one.name: one for one in classes}
        self._fleet = fleet
        self._room = Room(loads, classes)
        self._dispatcher = dispatcher
        self._lengths = tickets.output_lengths
        self._rng = rng
        self._queues: dict[str, AdmissionQueue[T]] = {}
        self._waits_in: dict[T, AdmissionQueue[T]] = {}
        """Where each request waits, because its model may have other workers by the time it leaves."""
        self._running: dict[int, Sent[T]] = {}
        """By ticket."""
        self._leaves_worker = leaves_worker
        self._preemption: Preemption[T] = Preemption(self._room, loads, classes, dispatcher.limit)
        self._first: T | None = None
        """The request whose turn is next and for which another one gives way, while it is offered."""
        self._worker: Candidate | None = None
        """The worker of the latest placement."""
        self._tickets = tickets
        tickets.on_room.append(self._seen)

    def pool(self, request: Request) -> str:
        """Return the model whose workers the request waits for."""
        return self._fleet.models.base(request.model) or request.model or ""

    def queue(self, model: str) -> AdmissionQueue[T]:
        queue = self._queues.get(model)
        if queue is None:
            if len(self._queues) >= MODELS_KEPT:
                for name in [name for name, one in self._queues.items() if not one]:
                    del self._queues[name]
            queue = self._queues[model] = AdmissionQueue(self._classes, self._room, self._rng)
        return queue

    def ask(
        self, item: T, request: Request, claim: Claim, now_s: float, within: Container[str] | None = None
    ) -> Ticket | Queued | Reject | EarlyRefusal | Waits:
        """Place a request, let it wait, or refuse it. `within` limits the endpoints.

        A request that waits is asked again in its turn, and never refused for its wait then. One for which
        no worker is ready leaves the queue.
        """
        again = item in self._waits_in
        seen: Ticket | Queued | Reject | NoRoom | DecisionRecord
        if not again and self._queues.get(self.pool(request)):
            seen = self._dispatcher.survey(request, now_s, within)
        else:
            seen = self._dispatch(request, claim, now_s, within)
            if (not again or item is self._first) and (by := self._displace(request, claim, seen, now_s, within)):
                seen = _noting(self._dispatch(request, claim, now_s, within), f"a request of class {by} gave way")
        if again and (isinstance(seen, NoRoom) or (isinstance(seen, Reject) and seen.at_limit)):
            return WAITS
        if isinstance(seen, Ticket):
            self._placed(item, request, claim, seen, now_s)
        elif isinstance(seen, (Queued, Reject)):
            self.leave(item, now_s)
        else:
            return self._wait(item, request, claim, seen.record if isinstance(seen, NoRoom) else seen, now_s)
        return seen

    def _wait(
        self, item: T, request: Request, claim: Claim, record: DecisionRecord, now_s: float
    ) -> EarlyRefusal | Waits:
        queue, cost, workers = self.queue(self.pool(request)), self._cost(request, record.fleet), len(record.candidates)
        refusal = queue.refusal(claim, cost, workers, now_s)
        if refusal is not None:
            return refusal
        queue.enter(item, claim, cost, request.arrived_s, now_s, workers)
        self._waits_in[item] = queue
        return WAITS

    def _dispatch(
        self, request: Request, claim: Claim, now_s: float, within: Container[str] | None
    ) -> Ticket | Queued | Reject | NoRoom:
        part = self._part(request, claim, now_s)

        def has_room(candidate: Candidate, uncached_tokens: int) -> bool:
            return self._room.has(part, candidate, uncached_tokens, now_s)

        return self._dispatcher.dispatch_with_room(request, now_s, has_room, within)

    def _part(self, request: Request, claim: Claim, now_s: float) -> ClassPart:
        queue = self._queues.get(self.pool(request))
        return (claim.of.name, False) if queue is None else queue.part(claim, now_s)

    def _cost(self, request: Request, seen: FleetView, worker: WorkerId | None = None) -> Cost:
        """Return the cost of a request on `worker`, or where its first token would come first."""
        home = _home(seen)
        if worker is None:
            best = min(seen.workers, key=lambda view: view.queue_wait_s + view.prefill_s)
            return cost_of(request, best, self._lengths, home)
        place = seen.row_of(worker)
        assert place is not None, "the worker was a candidate"
        return cost_of(request, seen.worker(place), self._lengths, home)

    def _placed(self, item: T, request: Request, claim: Claim, ticket: Ticket, now_s: float) -> None:
        """Charge a dispatched request, and remember it until its end."""
        queue = self._waits_in.get(item) or self.queue(self.pool(request))
        waited = self.leave(item, now_s)
        cost = self._cost(request, ticket.record.fleet, ticket.candidate.id)
        queue.charge(claim, cost.seconds, now_s)
        one = self._running[ticket.id] = Sent(item, queue, claim, cost, ticket, waited)
        if self._leaves_worker is not None:
            self._preemption.sent(one)
            if one.gave_way:
                _noting(ticket, f"it gave way {one.gave_way} times before")
        self._worker = ticket.candidate

    def _displace(
        self,
        request: Request,
        claim: Claim,
        seen: Ticket | Queued | Reject | NoRoom,
        now_s: float,
        within: Container[str] | None,
    ) -> str | None:
        """Let another request leave a worker that has no room for this one; return its class, None without one."""
        if not self._preemption or not (isinstance(seen, NoRoom) or (isinstance(seen, Reject) and seen.at_limit)):
            return None
        record = (
            seen.record if isinstance(seen, NoRoom) else self._dispatcher.survey(request, now_s, within, at_limit=True)
        )
        if not isinstance(record, DecisionRecord):
            return None
        queue = self.queue(self.pool(request))
        victim = self._preemption.victim(claim, queue, _ranked(record), now_s)
        return victim.claim.of.name if victim is not None and self._leaves(victim, claim.of, now_s) else None

    def _leaves(self, victim: Sent[T], by: RequestClass, now_s: float) -> bool:
        assert self._leaves_worker is not None, "without it nothing is noted as sent"
        self._preemption.stays(victim)  # if it cannot leave now, it cannot later
        return self._leaves_worker(victim, partial(self._left, victim, by, now_s))

    def _left(self, victim: Sent[T], by: RequestClass, now_s: float, waits: bool) -> None:
        self._tickets.cancelled(victim.ticket, now_s, f"gave way to a request of class {by.name}")
        if waits:
            victim.queue.take_back(victim.place(), victim.cost.seconds, now_s)
            self._waits_in[victim.item] = victim.queue

    def leave(self, item: T, now_s: float) -> Waiting[T] | None:
        queue = self._waits_in.pop(item, None)
        return None if queue is None else queue.leave(item, now_s)

    def _seen(self, ticket: Ticket) -> None:
        """Learn from a first token, or correct the charge of a request that has ended, by the length of its answer."""
        charged, ttft_s = self._running.get(ticket.id), ticket.record.ttft_s
        if charged is None:
            return
        if not ticket.ended:
            self._preemption.began(charged)
            if charged.waited is not None and ttft_s is not None:
                charged.queue.came(charged.waited, ticket.reservation.at_s + ttft_s)
            return
        del self._running[ticket.id]
        self._preemption.stays(charged)
        tokens, cost = ticket.output_tokens, charged.cost
        charged.queue.settle(charged.claim, cost.seconds, 0.0 if tokens is None else cost.corrected_s(tokens))

    def turn(self, now_s: float, offer: Callable[[T], None]) -> float:
        """Offer waiting requests of all models while there is room; return the seconds to the next turn.

        `offer` has to `ask` for the request again.
        """

        def placed(item: T) -> Candidate | None:
            self._worker = None
            offer(item)
            return self._worker

        waits_s = [
            self._turn(queue, self._candidates(model or None), now_s, placed)
            for model, queue in list(self._queues.items())
            if queue
        ]
        return min(_LONGEST_TURN_S, max(_SHORTEST_TURN_S, min(waits_s, default=inf)))

    def _turn(
        self,
        queue: AdmissionQueue[T],
        candidates: Sequence[Candidate],
        now_s: float,
        offer: Callable[[T], Candidate | None],
    ) -> float:
        wait_s = queue.turn(candidates, now_s, offer)
        while self._preemption and (first := queue.first(now_s)) is not None:
            if self._preemption.victim(first.claim, queue, [(one, 1) for one in candidates], now_s) is None:
                break
            self._first = first.item
            placed = offer(first.item)
            self._first = None
            if placed is None:
                break
            wait_s = queue.turn(candidates, now_s, offer)
        return wait_s

    def expired(self, now_s: float) -> list[Waiting[T]]:
        """Take out and return the requests that have waited for too long."""
        late = [one for queue in self._queues.values() for one in queue.expired(now_s)]
        for one in late:
            del self._waits_in[one.item]
        return late

    def _candidates(self, model: str | None) -> Sequence[Candidate]:
        found = self._fleet.candidate_sets.of(model)
        return found.ready or [candidate for endpoint in found.half_open for candidate in endpoint.candidates]

    def explained(self, request: Request, claim: Claim, now_s: float) -> dict[str, Any]:
        """Return what would become of a request now: its class, its place, the time to its first token, and why."""
        seen, queue = self._dispatcher.survey(request, now_s), self._queues.get(self.pool(request))
        place = 0 if queue is None else queue.place(claim)
        if not isinstance(seen, DecisionRecord):
            return {"place": place, "ttft_s": None, "action": "queue", "reason": "no worker is ready"}
        cost = self._cost(request, seen.fleet)
        queue = self.queue(self.pool(request))
        ttft_s = queue.expected_s(claim, cost, len(seen.candidates), now_s)
        refusal = queue.refusal(claim, cost, len(seen.candidates), now_s)
        uncached, part = seen.fleet.uncached_tokens, queue.part(claim, now_s)
        room = [
            one.id
            for one, tokens in zip(seen.candidates, uncached, strict=True)
            if self._room.has(part, one, int(tokens), now_s)
        ]
        first = queue.first(now_s) is None and self._preemption.victim(claim, queue, _ranked(seen), now_s) is not None
        if refusal is not None:
            action, reason = "refuse", f"its first token would come later than its class allows: {refusal.reason}"
        elif queue:
            action, reason = "wait", f"{len(queue)} requests wait for the workers of its model"
        elif not room and first:
            action, reason = "dispatch", "a request of a later class gives way"
        elif not room:
            whose = "a tenant that runs more than its part" if part[1] else "its class"
            action, reason = "wait", f"no worker has room for {whose}"
        else:
            action, reason = "dispatch", f"{len(room)} workers have room for its class"
        return {"place": place, "ttft_s": ttft_s, "action": action, "reason": reason}

    def waiting(self) -> dict[str, tuple[int, float]]:
        """Return by class how many requests wait, and the seconds of work that they are."""
        lines = [line for queue in self._queues.values() for line in queue.lines()]
        return {
            name: (
                sum(line.requests for line in lines if line.of.name == name),
                sum(line.seconds for line in lines if line.of.name == name),
            )
            for name in self._classes
        }

    def close(self) -> None:
        if self._seen in self._tickets.on_room:
            self._tickets.on_room.remove(self._seen)

    def __len__(self) -> int:
        return len(self._waits_in)

    def __contains__(self, item: T) -> bool:
        return item in self._waits_in

    def statistics(self) -> dict[str, Any]:
        return {
            model: {line.of.name: {"waiting": line.requests, "work_s": line.seconds} for line in queue.lines()}
            for model, queue in self._queues.items()
        }


def _ranked(record: DecisionRecord) -> Iterable[tuple[Candidate, int]]:
    """Yield the candidates with the uncached tokens of the request there, the best one first, if they are ranked."""
    tokens = record.fleet.uncached_tokens
    by_id = {one.id: (one, int(tokens[row])) for row, one in enumerate(record.candidates)}
    return [by_id[worker] for worker in record.decision.ranked or by_id]


def _noting(placed: P, reason: str) -> P:
    """Add to the reason of a decision, which its record and the receipt show."""
    if isinstance(placed, Ticket):
        decision = placed.record.decision
        placed.record.decision = msgspec.structs.replace(decision, reason=f"{decision.reason}; {reason}")
    return placed


def _home(seen: FleetView) -> WorkerId | None:
    """Return the worker that holds a good part of the prompt, and more than the others."""
    cached = seen.cached_tokens
    place = int(cached.argmax())
    most = float(cached[place])
    if most < _HOME_SHARE * (most + float(seen.uncached_tokens[place])) or (cached == most).sum() > 1:
        return None
    return seen.ids[place]

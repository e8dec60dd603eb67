"""Requests that the policy holds for a better moment."""

from __future__ import annotations

import asyncio

from policies.view import WorkerId
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.fleet import Fleet
from router.placement.held_by_worker import HeldByWorker
from router.placement.ticket_life import Tickets
from router.placement.tickets import Held
from router.requests.queues.request import WaitingRequest, count


class HoldQueue:
    """Requests that the policy holds until their worker has no prefill left, by worker.

    When the worker has no prefill left, or the fleet changes, its requests are offered again in the order of their
    last decision. The first one that is placed on the worker ends the round. Each request is also offered when its own
    hold expires.
    """

    def __init__(self, tickets: Tickets, fleet: Fleet, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._waiting: HeldByWorker[WaitingRequest] = HeldByWorker()
        self._timers: dict[WaitingRequest, asyncio.TimerHandle] = {}
        self._due: dict[WorkerId | None, None] = {}
        """The workers whose requests are offered in the next iteration, in order."""
        self._tickets = tickets
        self._fleet = fleet
        tickets.on_prefills_done.append(self.prefills_done)
        fleet.on_change.append(self.changed)
        fleet.on_loss.append(self.lost)

    @property
    def open(self) -> bool:
        return len(self._waiting) < self._limit

    def enter(self, request: WaitingRequest, held: Held) -> None:
        """Add `request`, which must not be here already."""
        self._waiting.enter(request, held.worker)
        count(request, 1)
        self._timers[request] = self._loop.call_at(held.until_s, self._offer_one, request)

    def leave(self, request: WaitingRequest) -> None:
        if self._waiting.leave(request):
            self._timers.pop(request).cancel()
            count(request, -1)

    def prefills_done(self, worker: WorkerId) -> None:
        """Offer the requests of `worker`, which has no prefill left, in the next iteration.

        Not at once, because this is called in the middle of the end of a prefill.
        """
        if self._waiting.first(worker):
            self._soon(worker)

    def changed(self) -> None:
        """Offer the requests of each worker in the next iteration, because the fleet has changed."""
        for worker in self._waiting.workers:
            self._soon(worker)

    def lost(self, endpoint: FleetEndpoint) -> None:
        self.changed()

    def by_route(self) -> list[tuple[str, str, int]]:
        counts: dict[tuple[str, str], int] = {}
        for request in self._waiting:
            counts[request.served_as] = counts.get(request.served_as, 0) + 1
        return [(route, model, number) for (route, model), number in counts.items()]

    def close(self) -> None:
        if self.prefills_done in self._tickets.on_prefills_done:
            self._tickets.on_prefills_done.remove(self.prefills_done)
        if self.changed in self._fleet.on_change:
            self._fleet.on_change.remove(self.changed)
            self._fleet.on_loss.remove(self.lost)

    def _soon(self, worker: WorkerId | None) -> None:
        if not self._due:
            self._loop.call_soon(self._offer)
        self._due[worker] = None

    def _offer(self) -> None:
        due, self._due = self._due, {}
        for worker in due:
            for request in self._waiting.first(worker):
                self._offer_one(request)
                if request.sent_to(worker):
                    break

    def _offer_one(self, request: WaitingRequest) -> None:
        if request in self._waiting:  # it may have left since it was selected
            request.offer()

    def __len__(self) -> int:
        return len(self._waiting)

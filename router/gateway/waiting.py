"""Requests that wait in the gateway: for any worker at all, or for a better moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from policies.view import WorkerId
from router.placement.dispatcher import Dispatcher
from router.placement.endpoints import FleetEndpoint
from router.placement.fleet import Fleet
from router.placement.hold_queue import HeldByWorker
from router.placement.tickets import Held

if TYPE_CHECKING:
    from router.gateway.exchange import Exchange


class WaitingRoom:
    """Exchanges for which no worker was ready, oldest first; all are offered again when the fleet changes."""

    def __init__(self, fleet: Fleet, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._waiting: dict[Exchange, None] = {}
        self._offered = False
        self._fleet = fleet
        fleet.on_change.append(self.changed)

    def enter(self, exchange: Exchange) -> bool:
        """False when too many wait already."""
        if exchange not in self._waiting and len(self._waiting) >= self._limit:
            return False
        if exchange not in self._waiting:
            _count(exchange, 1)
            self._waiting[exchange] = None
        return True

    def leave(self, exchange: Exchange) -> None:
        """`exchange` no longer waits."""
        if exchange in self._waiting:
            del self._waiting[exchange]
            _count(exchange, -1)

    def changed(self) -> None:
        """A candidate may have become available. The fleet calls this in the middle of its own work, so not now."""
        if self._waiting and not self._offered:
            self._offered = True
            self._loop.call_soon(self._offer)

    def close(self) -> None:
        """Listen to the fleet no longer."""
        if self.changed in self._fleet.on_change:
            self._fleet.on_change.remove(self.changed)

    def _offer(self) -> None:
        self._offered = False
        for exchange in list(self._waiting):
            _place(exchange)

    def __len__(self) -> int:
        return len(self._waiting)


class HoldQueue:
    """Exchanges that the policy wants to wait for a worker; for each of these in the order in which they last asked.

    They are offered again, one after another until one goes there, when their worker has no prefill left or the fleet
    changes, and each at its own time at the latest.
    """

    def __init__(self, dispatcher: Dispatcher, fleet: Fleet, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._waiting: HeldByWorker[Exchange] = HeldByWorker()
        self._timers: dict[Exchange, asyncio.TimerHandle] = {}
        self._relieved: dict[WorkerId | None, None] = {}
        self._dispatcher = dispatcher
        self._fleet = fleet
        dispatcher.on_prefills_done.append(self.relieved)
        fleet.on_change.append(self.changed)
        fleet.on_loss.append(self.lost)

    @property
    def open(self) -> bool:
        """Whether another one may wait."""
        return len(self._waiting) < self._limit

    def enter(self, exchange: Exchange, deferral: Held) -> None:
        """`exchange` is to wait; it must not be waiting already."""
        self._waiting.enter(exchange, deferral.worker)
        _count(exchange, 1)
        self._timers[exchange] = self._loop.call_at(deferral.until_s, self._offer_one, exchange)

    def leave(self, exchange: Exchange) -> None:
        """`exchange` does not wait, or no longer."""
        if self._waiting.leave(exchange):
            self._timers.pop(exchange).cancel()
            _count(exchange, -1)

    def relieved(self, worker: WorkerId) -> None:
        """A worker has no prefill left. The dispatcher calls this in the middle of its own work, so not now."""
        if self._waiting.first(worker):
            self._soon(worker)

    def changed(self) -> None:
        """So does the fleet, when workers have come or gone."""
        for worker in self._waiting.workers:
            self._soon(worker)

    def lost(self, endpoint: FleetEndpoint) -> None:
        """A worker has gone."""
        self.changed()

    def close(self) -> None:
        """Listen no longer."""
        if self.relieved in self._dispatcher.on_prefills_done:
            self._dispatcher.on_prefills_done.remove(self.relieved)
        if self.changed in self._fleet.on_change:
            self._fleet.on_change.remove(self.changed)
            self._fleet.on_loss.remove(self.lost)

    def _soon(self, worker: WorkerId | None) -> None:
        if not self._relieved:
            self._loop.call_soon(self._offer)
        self._relieved[worker] = None

    def _offer(self) -> None:
        relieved, self._relieved = self._relieved, {}
        for worker in relieved:
            for exchange in self._waiting.first(worker):
                self._offer_one(exchange)
                ticket = exchange.ticket
                if ticket is not None and ticket.candidate.id == worker:
                    break

    def _offer_one(self, exchange: Exchange) -> None:
        if exchange in self._waiting:  # or it has left meanwhile
            _place(exchange)

    def __len__(self) -> int:
        return len(self._waiting)


def _count(exchange: Exchange, change: int) -> None:
    """Requests that wait are counted against their tenant's quota, too."""
    account = exchange.caller.account
    if account is not None:
        account.queued += change


def _place(exchange: Exchange) -> None:
    try:
        exchange.place()
    except Exception:
        exchange.crashed()

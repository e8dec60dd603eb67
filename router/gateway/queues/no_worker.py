"""Requests for which no worker is ready."""

from __future__ import annotations

import asyncio
from typing import Protocol

from router.placement.fleet import Fleet
from router.security.callers import TenantUsage


class QueuedRequest(Protocol):
    """A request that waits in a queue of the gateway."""

    @property
    def account(self) -> TenantUsage | None:
        """The tenant's usage; requests that wait count against its quota."""
        ...

    def offer(self) -> None:
        """Ask for a worker again. The request may leave the queue, or stay."""
        ...


def count(request: QueuedRequest, change: int) -> None:
    """Change the number of the tenant's waiting requests by `change`, +1 or -1."""
    account = request.account
    if account is not None:
        account.queued += change


class NoWorkerQueue:
    """Requests for which no worker is ready, oldest first. All are offered again when the fleet changes."""

    def __init__(self, fleet: Fleet, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._waiting: dict[QueuedRequest, None] = {}
        self._scheduled = False
        self._fleet = fleet
        fleet.on_change.append(self.changed)

    @property
    def open(self) -> bool:
        """Whether another request may enter."""
        return len(self._waiting) < self._limit

    def enter(self, request: QueuedRequest) -> None:
        """Add `request`, which must not be here already."""
        count(request, 1)
        self._waiting[request] = None

    def leave(self, request: QueuedRequest) -> None:
        """Remove `request` if it is here."""
        if request in self._waiting:
            del self._waiting[request]
            count(request, -1)

    def changed(self) -> None:
        """Offer all requests in the next iteration.

        Not at once, because the fleet calls this in the middle of its own work.
        """
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._offer)

    def close(self) -> None:
        """Unsubscribe from the fleet."""
        if self.changed in self._fleet.on_change:
            self._fleet.on_change.remove(self.changed)

    def _offer(self) -> None:
        self._scheduled = False
        for request in list(self._waiting):
            request.offer()

    def __len__(self) -> int:
        return len(self._waiting)

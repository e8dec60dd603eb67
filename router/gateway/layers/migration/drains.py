"""Moves answers in progress from workers that drain: a drain does not wait for the longest answer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from router.gateway.layers.migration.permits import Permits
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.health import WorkerState
from router.placement.tickets import Ticket

LOOK_S: Final = 0.25


class MovableRequest(Protocol):
    """A request in progress: `router.gateway.flow.driver.RequestDriver`."""

    @property
    def tickets(self) -> Sequence[Ticket]: ...

    def hand_over(self) -> None:
        """Let the answer go on at another worker, if that is possible."""


class Drains:
    """Looks at the fleet while it is `on`, and offers the requests of workers that drain to move, the oldest first.

    Only as many move at once as have a permit, because an answer stays at its worker until another one can begin.
    """

    def __init__(
        self, fleet: Fleet, loop: asyncio.AbstractEventLoop, running: Collection[MovableRequest], permits: Permits
    ) -> None:
        self._fleet = fleet
        self._loop = loop
        self._running = running
        self._permits = permits
        self._since_s: Mapping[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def lasted_s(self, endpoint_id: str) -> float:
        """Return how long the endpoint has been draining; 0 if it does not."""
        since_s = self._since_s.get(endpoint_id)
        return 0.0 if since_s is None else self._loop.time() - since_s

    def switch(self, on: bool) -> None:
        if on and self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look)
        elif not on and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)
        now_s, before = self._loop.time(), self._since_s
        draining = [one for one in self._fleet.endpoints if one.state is WorkerState.DRAINING]
        self._since_s = {one.id: before.get(one.id, now_s) for one in draining}
        if draining:
            self._offer(draining)

    def _offer(self, draining: list[FleetEndpoint]) -> None:
        there = [one for one in self._running if any(ticket.candidate.endpoint in draining for ticket in one.tickets)]
        for request in sorted(there, key=_arrived_s):
            if not self._permits.free:
                break
            request.hand_over()


def _arrived_s(request: MovableRequest) -> float:
    return min([ticket.request.arrived_s for ticket in request.tickets], default=0.0)

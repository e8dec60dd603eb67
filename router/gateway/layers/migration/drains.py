"""Moves answers in progress from workers that drain: a drain does not wait for the longest answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, Protocol

from router.gateway.layers.migration.permits import Permits
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.health import WorkerState
from router.placement.tickets import Ticket

LOOK_S: Final = 0.25


class MovableRequest(Protocol):
    """A request in progress: `router.gateway.flow.driver.RequestDriver`."""

    @property
    def tickets(self) -> Sequence[Ticket]: ...

    @property
    def kept_bytes(self) -> int:
        """What features keep of it while its answer runs."""

    def hand_over(self) -> bool:
        """Let the answer go on at another worker, if that is possible. Return False if no worker has a place for it."""


class Drains:
    """Looks at the fleet while it is `on`, and offers the requests of workers that drain to move, the oldest first.

    `after_s` returns after how much of a drain the requests of a route move, None for never, unless the endpoint has
    its own time. Only as many move at once
    as have a permit. Where one finds no place, the younger ones for the same model do not look for one.
    """

    def __init__(
        self,
        fleet: Fleet,
        loop: asyncio.AbstractEventLoop,
        running: Collection[MovableRequest],
        permits: Permits,
        after_s: Callable[[str], float | None],
    ) -> None:
        self._fleet = fleet
        self._loop = loop
        self._running = running
        self._permits = permits
        self._after_s = after_s
        self._since_s: Mapping[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def switch(self, on: bool) -> None:
        if on and self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look)
        elif not on and self._timer is not None:
            self._timer.cancel()
            self._timer, self._since_s = None, {}

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)
        now_s, before = self._loop.time(), self._since_s
        draining = [one for one in self._fleet.endpoints if one.state is WorkerState.DRAINING]
        self._since_s = {one.id: before.get(one.id, now_s) for one in draining}
        if draining:
            self._offer(now_s)

    def _offer(self, now_s: float) -> None:
        full: set[str | None] = set()
        for ticket, request in sorted(self._leaving(now_s), key=_arrived_s):
            if not self._permits.free:
                break
            model = ticket.request.model
            if model not in full and not request.hand_over():
                full.add(model)

    def _leaving(self, now_s: float) -> Iterator[tuple[Ticket, MovableRequest]]:
        for request in self._running:
            for ticket in request.tickets:
                endpoint = ticket.candidate.endpoint
                since_s, after_s = self._since_s.get(endpoint.id), endpoint.migrate_after_s
                if since_s is not None and after_s is None:
                    after_s = self._after_s(ticket.request.route)
                if since_s is not None and after_s is not None and now_s - since_s >= after_s:
                    yield ticket, request


def _arrived_s(one: tuple[Ticket, MovableRequest]) -> float:
    return one[0].request.arrived_s

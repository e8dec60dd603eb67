"""Requests that wait for the first event of a lost worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.fleet import Fleet
from router.requests.queues.request import WaitingRequest

LOOK_AGAIN_S = 1.0
"""How long to wait before the retry budget is asked again about a move that it refused."""


class LostWorkers:
    """Moves requests away from workers that probes have ejected or an operator has removed.

    A worker whose host has vanished closes no connection. Without this class its requests would wait until
    `first_event_s`. A slow worker may fail its probes, too. So requests of a worker that time-outs have ejected move
    only if it has given no sign of life since the first one. A request also needs another worker that is ready, and the
    retry budget. The other requests are checked again when a worker becomes ready, and every second.
    """

    def __init__(self, fleet: Fleet, loop: asyncio.AbstractEventLoop, requests: Iterable[WaitingRequest]) -> None:
        self._fleet = fleet
        self._loop = loop
        self._requests = requests
        self._lost: set[FleetEndpoint] = set()
        self._scheduled = False
        self._again: asyncio.TimerHandle | None = None
        fleet.on_loss.append(self.lost)
        fleet.on_change.append(self.changed)

    def lost(self, endpoint: FleetEndpoint) -> None:
        """Move the requests of `endpoint`, which was ejected or removed, in the next iteration.

        Not at once, because the fleet calls this in the middle of its own work.
        """
        self._lost.add(endpoint)
        self.changed()

    def changed(self) -> None:
        """Try again in the next iteration, because another worker may have become ready."""
        if self._lost and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._move)

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        if self.lost in self._fleet.on_loss:
            self._fleet.on_loss.remove(self.lost)
            self._fleet.on_change.remove(self.changed)

    def _move(self) -> None:
        self._scheduled = False
        if self._again is not None:
            self._again.cancel()
            self._again = None
        now_s = self._loop.time()
        waiting = {endpoint for endpoint in self._lost if self._fleet.lost(endpoint)}
        lost = {endpoint for endpoint in waiting if self._fleet.dead(endpoint, now_s)}
        self._lost = waiting - lost
        for request in list(self._requests):
            for endpoint in request.awaited:
                if endpoint in lost:
                    request.endpoint_lost(endpoint)
                    if endpoint in request.awaited:
                        self._lost.add(endpoint)  # no other worker was ready
        if self._lost:
            self._again = self._loop.call_later(LOOK_AGAIN_S, self.changed)

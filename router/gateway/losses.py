"""Requests that wait for the first event of a worker that has been lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from router.placement.endpoints import FleetEndpoint
from router.placement.fleet import Fleet

if TYPE_CHECKING:
    from router.gateway.exchange import Exchange


LOOK_AGAIN_S = 1.0
"""How soon the retry budget may allow what it did not."""


class Losses:
    """Takes requests off workers that probes have ejected or an operator has removed.

    A worker whose host has vanished closes no connection: without this its requests would wait until
    `first_event_s`. One that is merely slow may fail its probes, too, so a request is moved only where another worker
    is ready and the retry budget allows it; the others are looked at again when a worker becomes so, and every second.
    """

    def __init__(self, fleet: Fleet, loop: asyncio.AbstractEventLoop, exchanges: set[Exchange]) -> None:
        self._fleet = fleet
        self._loop = loop
        self._exchanges = exchanges
        self._lost: set[FleetEndpoint] = set()
        self._scheduled = False
        self._again: asyncio.TimerHandle | None = None
        fleet.on_loss.append(self.lost)
        fleet.on_change.append(self.changed)

    def lost(self, endpoint: FleetEndpoint) -> None:
        """`endpoint` has been ejected or removed. The fleet calls this in the middle of its own work, so not now."""
        self._lost.add(endpoint)
        self.changed()

    def changed(self) -> None:
        """Another worker may have become ready."""
        if self._lost and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._move)

    def close(self) -> None:
        """Listen to the fleet no longer."""
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
        lost = {endpoint for endpoint in self._lost if self._fleet.lost(endpoint)}
        self._lost = set()
        for exchange in list(self._exchanges):
            endpoint = exchange.awaited
            if endpoint in lost:
                try:
                    exchange.endpoint_lost()
                except Exception:
                    exchange.crashed()
                if exchange.awaited is endpoint:
                    self._lost.add(endpoint)  # nobody else was ready
        if self._lost:
            self._again = self._loop.call_later(LOOK_AGAIN_S, self.changed)

"""Requests for which no worker is ready, or has room."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from router.placement.fleet.fleet import Fleet
from router.requests.queues.request import WaitingRequest, count

_ROOM_CHECK_S: Final = 0.25
"""How often requests that wait for room ask again, since other gateways free room, too."""


class NoWorkerQueue:
    """Requests for which no worker is ready, oldest first. All are offered again when the fleet changes.

    Some wait for room on the workers of a model, which are at their limit. The oldest of each model is offered when a
    request ends.
    """

    def __init__(self, fleet: Fleet, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._waiting: dict[WaitingRequest, str | None] = {}
        """The model for whose workers each one waits; None: for any worker to be ready."""
        self._for_room: dict[str, OrderedDict[WaitingRequest, None]] = {}
        """Those of the waiting requests that wait for room, by model."""
        self._scheduled = False
        self._room_scheduled = False
        self._room_timer: asyncio.TimerHandle | None = None
        self._fleet = fleet
        fleet.on_change.append(self.changed)

    @property
    def open(self) -> bool:
        return len(self._waiting) < self._limit

    def enter(self, request: WaitingRequest, model: str | None = None) -> None:
        """Add `request`, which must not be here already. With `model` it waits for room on that model's workers."""
        count(request, 1)
        self._waiting[request] = model
        if model is not None:
            self._for_room.setdefault(model, OrderedDict())[request] = None
            if self._room_timer is None:
                self._room_timer = self._loop.call_later(_ROOM_CHECK_S, self._check_room)

    def any_for(self, model: str | None) -> bool:
        return model in self._for_room

    def leave(self, request: WaitingRequest) -> None:
        if request in self._waiting:
            model = self._waiting.pop(request)
            count(request, -1)
            if model is not None:
                waiting = self._for_room[model]
                del waiting[request]
                if not waiting:
                    del self._for_room[model]

    def freed(self) -> None:
        """Offer the oldest request of each model that waits for room, in the next iteration."""
        if self._for_room and not self._room_scheduled:
            self._room_scheduled = True
            self._loop.call_soon(self._offer_room)

    def changed(self) -> None:
        """Offer all requests in the next iteration.

        Not at once, because the fleet calls this in the middle of its own work.
        """
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._offer)

    def close(self) -> None:
        if self.changed in self._fleet.on_change:
            self._fleet.on_change.remove(self.changed)
        if self._room_timer is not None:
            self._room_timer.cancel()
            self._room_timer = None

    def _offer(self) -> None:
        self._scheduled = False
        # an offer that fails puts the request last, except in the order for room
        for request in [one for waiting in self._for_room.values() for one in waiting]:
            if request in self._waiting:
                request.offer()
        for request in [one for one, model in self._waiting.items() if model is None]:
            request.offer()

    def _offer_room(self) -> None:
        self._room_scheduled = False
        for model, waiting in list(self._for_room.items()):
            request = next(iter(waiting), None)
            if request is None:
                continue  # the offer of another one ended it
            request.offer()
            if request in self._for_room.get(model, ()):
                self._for_room[model].move_to_end(request, last=False)  # it left and entered again
            else:
                self.freed()  # there may be room for the next one

    def _check_room(self) -> None:
        self._room_timer = self._loop.call_later(_ROOM_CHECK_S, self._check_room) if self._for_room else None
        self.freed()

    def __len__(self) -> int:
        return len(self._waiting)

"""Requests per route: how many are on workers, and how many wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from router.config.model import RouteConfig
from router.errors import ErrorKind, RequestError
from router.metrics.instruments import Reading
from router.placement.request import Request
from router.requests.layer import QueueFeature
from router.requests.queues.request import WaitingRequest, count

_LONGEST_RETRY_S = 60.0
_SHORTEST_RETRY_S = 1.0
_FORGETTING = 0.9
"""Weight of the past at each end of a request, in the mean time between two ends."""


class RouteQueue:
    """The requests of one route: those on workers, up to the route's limit, and those that wait.

    A request waits here while the route is at its limit, oldest first. Requests that wait elsewhere because no worker
    is ready count against the queue's length, too. `running` counts the requests on workers and those that the policy
    holds.
    """

    def __init__(self, config: RouteConfig, loop: asyncio.AbstractEventLoop) -> None:
        self._config = config
        self._limit = config.max_requests
        self._longest = config.max_queued_requests
        self._loop = loop
        self._waiting: dict[WaitingRequest, None] = {}
        self._elsewhere: set[WaitingRequest] = set()
        """Requests that wait for a ready worker."""
        self._offered = 0
        """Free places that are reserved for requests whose offer is scheduled."""
        self.running = 0
        self.refused = 0
        self._gap_s = 0.0
        self._ended_s: float | None = None

    def adopt(self, config: RouteConfig) -> None:
        """Use another limit and queue. Requests that the new limit admits are offered."""
        self._config = config
        self._limit = config.max_requests
        self._longest = config.max_queued_requests
        self._offer_soon()

    @property
    def longest_wait_s(self) -> float | None:
        return self._config.queue_s

    @property
    def idle(self) -> bool:
        return not self.running and not self.queued

    def admit(self, *, waited: bool) -> bool:
        if not self._limit:
            self.running += 1
            return True
        taken = self.running if waited else self.running + len(self._waiting)
        if taken >= self._limit:
            return False
        self.running += 1
        return True

    def end(self) -> None:
        self.running -= 1
        now_s = self._loop.time()
        if self._ended_s is not None:
            gap_s = now_s - self._ended_s
            self._gap_s = gap_s if not self._gap_s else self._gap_s * _FORGETTING + gap_s * (1.0 - _FORGETTING)
        self._ended_s = now_s
        self._offer_soon()

    def wait(self, request: WaitingRequest) -> None:
        count(request, 1)
        self._waiting[request] = None

    def waits_elsewhere(self, request: WaitingRequest) -> None:
        self._elsewhere.add(request)

    def leave(self, request: WaitingRequest) -> None:
        self._elsewhere.discard(request)
        if request in self._waiting:
            del self._waiting[request]
            count(request, -1)

    @property
    def queued(self) -> int:
        return len(self._waiting) + len(self._elsewhere)

    @property
    def limit_reached(self) -> str:
        return f"{self._limit} of its requests are in progress, its limit"

    @property
    def open(self) -> bool:
        return self._longest is None or self.queued < self._longest

    def refusal(self, why: str) -> RequestError:
        self.refused += 1
        said = f"route {self._config.name}: {why}; try again later"
        return RequestError(ErrorKind.ROUTE_BUSY, said, retry_after_s=self._retry_s())

    def _retry_s(self) -> float:
        return min(_LONGEST_RETRY_S, max(_SHORTEST_RETRY_S, self._gap_s * (self.queued + 1)))

    def _offer_soon(self) -> None:
        if len(self._waiting) > self._offered and (not self._limit or self.running + self._offered < self._limit):
            self._offered += 1
            self._loop.call_soon(self._offer)

    def _offer(self) -> None:
        self._offered -= 1
        request = next(iter(self._waiting), None)
        if request is not None and (not self._limit or self.running < self._limit):
            request.offer()
            self._offer_soon()  # the request may have ended without taking the place

    def statistics(self) -> dict[str, int]:
        return {"running": self.running, "queued": self.queued, "refused": self.refused}


class RouteQueues(QueueFeature):
    """The queues of the routes that have a limit, or a queue of their own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queues: dict[str, RouteQueue] = {}

    def adopt(self, routes: Sequence[RouteConfig]) -> bool:
        """Use other routes. Queues keep their requests; a queue whose route has left admits all that wait in it."""
        wanted = {route.name: route for route in routes}
        for name, queue in list(self._queues.items()):
            if queue.idle and (name not in wanted or not limited(wanted[name])):
                del self._queues[name]
            else:
                queue.adopt(wanted.get(name) or RouteConfig(name=name))
        for name, route in wanted.items():
            if limited(route) and name not in self._queues:
                self._queues[name] = RouteQueue(route, self._loop)
        return bool(self._queues)

    def queue(self, request: Request) -> RouteQueue | None:
        return self._queues.get(request.route)

    def readings(self) -> Iterable[Reading]:
        for route, queue in self._queues.items():
            yield "warmroute_route_requests", (route, "running"), queue.running
            yield "warmroute_route_requests", (route, "queued"), queue.queued
            yield "warmroute_route_refusals", (route,), queue.refused

    def statistics(self) -> dict[str, Any]:
        return {"routes": {name: queue.statistics() for name, queue in self._queues.items()}}


def limited(route: RouteConfig) -> bool:
    return bool(route.max_requests) or route.max_queued_requests is not None or route.queue_s is not None

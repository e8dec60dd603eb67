"""Requests at workers that refuse connections.

vLLM closes its port when it shuts down, and then waits for its connections without a limit. If its engine is gone by
then, its streams stay open without a byte, and no probe says more than that the port refuses. That and silence together
mean that no answer will come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from backends.connect_errors import is_refusal
from backends.worker import Endpoint
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.fleet import Fleet
from router.requests.queues.request import WaitingRequest

QUIET_S: Final = 1.0
"""How long nothing may come from a worker that refuses connections. A server that only lets its last requests end
brings tokens meanwhile."""
_LOOK_S: Final = 0.25
"""Time between two dials. The first refusal alone may be that of a server that is being replaced."""
_PAUSE_S: Final = 0.75
"""Time between two dials of a worker that accepts connections, where no probe would tell soon."""
_DIAL_LIMIT_S: Final = 1.0
_LATE_S: Final = 0.25
"""A look that is later than this proves nothing: bytes may lie in their sockets."""


class GoneWorkers:
    """Ends the requests at a worker that refuses connections once nothing has come from it for `QUIET_S`.

    Probes meet the refusals. If they are rarer than `_PAUSE_S`, quiet workers with requests are dialled beside them.
    """

    def __init__(
        self,
        fleet: Fleet,
        loop: asyncio.AbstractEventLoop,
        requests: Iterable[WaitingRequest],
        probe_interval_s: float = 0.0,
    ) -> None:
        self._fleet = fleet
        self._loop = loop
        self._requests = requests
        self._looks: dict[FleetEndpoint, asyncio.Task[None]] = {}
        self._timer = loop.call_later(_PAUSE_S, self._dial_quiet) if probe_interval_s > QUIET_S else None
        fleet.on_refusal.append(self.refused)
        fleet.on_removal.append(self.refused)  # no probe will meet its refusal

    def refused(self, endpoint: FleetEndpoint) -> None:
        """Watch `endpoint`, which has refused a connection, has left the fleet or is quiet, while it has requests."""
        if endpoint not in self._looks and self._at(endpoint):
            look = self._loop.create_task(self._watch(endpoint), name=f"refusals of {endpoint.id}")
            self._looks[endpoint] = look

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for look in self._looks.values():
            look.cancel()
        if self.refused in self._fleet.on_refusal:
            self._fleet.on_refusal.remove(self.refused)
            self._fleet.on_removal.remove(self.refused)

    def _at(self, endpoint: FleetEndpoint) -> list[WaitingRequest]:
        return [request for request in self._requests if endpoint in request.endpoints]

    def _dial_quiet(self) -> None:
        self._timer = self._loop.call_later(_PAUSE_S, self._dial_quiet)
        now_s = self._loop.time()
        for endpoint in {endpoint for request in self._requests for endpoint in request.endpoints}:
            if now_s - self._fleet.evidence(endpoint, now_s).progress_s >= _PAUSE_S:
                self.refused(endpoint)

    async def _watch(self, endpoint: FleetEndpoint) -> None:
        """Look until no request is left at `endpoint`, or a dial succeeds and probes go on."""
        try:
            refused = True
            while self._at(endpoint):
                pause_s = _LOOK_S if refused else _PAUSE_S
                due_s = self._loop.time() + pause_s
                await asyncio.sleep(pause_s)
                on_time = self._loop.time() - due_s < _LATE_S
                refused = await refuses(self._loop, endpoint.endpoint, _DIAL_LIMIT_S)
                if not refused and self._fleet.get(endpoint.id) is endpoint:
                    return
                if refused and on_time:
                    self._end_quiet(endpoint)
        finally:
            del self._looks[endpoint]

    def _end_quiet(self, endpoint: FleetEndpoint) -> None:
        now_s = self._loop.time()
        if now_s - self._fleet.evidence(endpoint, now_s).progress_s >= QUIET_S:
            for request in self._at(endpoint):
                request.worker_gone(endpoint)


async def refuses(loop: asyncio.AbstractEventLoop, endpoint: Endpoint, limit_s: float) -> bool:
    try:
        async with asyncio.timeout(limit_s):
            transport, _ = await loop.create_connection(asyncio.Protocol, endpoint.host, endpoint.port)
    except OSError as error:  # TimeoutError is one
        return is_refusal(error)
    transport.abort()
    return False

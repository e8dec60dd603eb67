"""The public listener and its clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from router.config.model import Config
from router.core.dispatcher import Dispatcher
from router.core.edges import Request
from router.core.fleet import Fleet
from router.gateway.client import ClientConnection
from router.gateway.listen import public_sockets, start_server
from router.gateway.local import LocalAnswers
from router.gateway.plane import Plane
from router.gateway.ports import GatewayMetrics
from router.gateway.preview import preview
from router.gateway.rewrites import Relearn
from router.tokens.identity import Identity

log = logging.getLogger("warmroute.gateway")

BACKLOG = 2_048
LAST_WORDS_S = 1.0
"""How long clients may take to read the end of an answer that the drain deadline cut."""
# Deadlines are looked at this often, or four times within the shortest of them.
SWEEP_S = 0.5
_SHORTEST_SWEEP_S = 0.01


class Gateway:
    """The data plane: listens on the configured address and forwards.

    One timer looks at all deadlines, so that a stream costs none; a timeout is late by at most one sweep.
    """

    def __init__(
        self,
        config: Config,
        dispatcher: Dispatcher,
        fleet: Fleet,
        identity: Identity,
        metrics: GatewayMetrics,
        relearn: Relearn | None = None,
    ) -> None:
        self._config = config
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._identity = identity
        self._metrics = metrics
        self._relearn = relearn
        self._plane: Plane | None = None
        self._servers: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sweep_s = sweep_interval_s(config)

    async def start(self) -> list[str]:
        """Listen. Returns the bound addresses: ``host:port``, ``[host]:port`` or a socket's path. Who gave the path of
        a Unix socket removes its file, after `aclose`.

        Raises:
            ListenError: an address cannot be had.
        """
        loop = asyncio.get_running_loop()
        plane = Plane(self._config, self._dispatcher, self._fleet, self._identity, self._metrics, loop, self._relearn)
        local = LocalAnswers(plane)

        def connection() -> ClientConnection:
            return ClientConnection(plane, local)

        listeners = public_sockets(self._config, BACKLOG)
        self._servers = [await start_server(loop, connection, listener, BACKLOG) for listener in listeners]
        self._plane = plane
        self._timer = loop.call_later(self._sweep_s, self._sweep)
        return [_address(listener.getsockname()) for listener in listeners]

    async def aclose(self, drain_s: float) -> None:
        """Stop accepting; requests in progress have `drain_s` to end, each connection closes after its own."""
        plane = self._plane
        if plane is None:
            return
        plane.drain()
        for server in self._servers:
            server.close()
        try:
            if not plane.quiet.is_set():
                await asyncio.wait_for(plane.quiet.wait(), drain_s)
        except TimeoutError:
            log.warning("requests cut off at the drain deadline", extra={"requests": len(plane.exchanges)})
        await _close_connections(plane)
        if self._timer is not None:
            self._timer.cancel()
        plane.losses.close()
        plane.rewrites.close()
        plane.waiting.close()
        plane.pools.close()

    async def preview(self, path: str, headers: Mapping[str, str], body: bytes) -> Request:
        """The request that these bytes would become, identified but not dispatched.

        Raises:
            RequestError: as the public port would answer.
        """
        assert self._plane is not None, "the gateway has not been started"
        return await preview(self._plane, path, headers, body)

    def statistics(self) -> dict[str, Any]:
        """Connections, requests in progress and waiting, pool sizes, the loop's tasks."""
        plane = self._plane
        return {**plane.statistics(), "tasks": len(asyncio.all_tasks(plane.loop))} if plane is not None else {}

    def _sweep(self) -> None:
        plane = self._plane
        assert plane is not None
        self._timer = plane.loop.call_later(self._sweep_s, self._sweep)
        now_s = plane.time()
        for connection in [each for each in plane.connections if each.deadline_s <= now_s]:
            try:
                connection.expired(now_s)
            except Exception:
                log.exception("deadline failed")
                connection.abort()
        plane.pools.sweep(now_s)


async def _close_connections(plane: Plane) -> None:
    """End what is still there with an error, and leave it a moment to go out."""
    for connection in list(plane.connections):
        try:
            connection.shut_down()
        except Exception:
            log.exception("connection failed to shut down")
    try:
        await asyncio.wait_for(plane.empty.wait(), LAST_WORDS_S)
    except TimeoutError:
        for connection in list(plane.connections):
            connection.abort()
        await asyncio.sleep(0)  # aborted connections tell so in the next turn


def sweep_interval_s(config: Config) -> float:
    """How often deadlines are looked at."""
    timeouts = config.timeouts
    shortest_s = min(
        timeouts.connect_s,
        timeouts.first_event_s,
        timeouts.stream_idle_s,
        timeouts.total_s,
        timeouts.client_header_s,
        timeouts.client_body_s,
        timeouts.client_idle_s,
        timeouts.upstream_idle_s,
        timeouts.header_hold_s,
        timeouts.comment_interval_s,
        timeouts.no_worker_wait_s or SWEEP_S,
    )
    return max(_SHORTEST_SWEEP_S, min(SWEEP_S, shortest_s / 4))


def _address(name: Any) -> str:
    if isinstance(name, tuple):
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
    return name.decode() if isinstance(name, bytes) else str(name)

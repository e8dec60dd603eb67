from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from router.config.model import Config, LimitsConfig, ModelConfig, RouteConfig, TenantConfig
from router.gateway.assembly import Assembly, GatewayContext
from router.gateway.client import ClientConnection
from router.gateway.last_look import LastLook
from router.gateway.listen.accept import TLS_HANDSHAKE_S, Acceptor, Listener
from router.gateway.listen.connection_limit import AcceptOrder
from router.gateway.listen.drain import SETTLE_S, close_listeners
from router.gateway.listen.sockets import public_sockets
from router.gateway.readings import gateway_readings
from router.limits.table import RateTable
from router.metrics.instruments import Reading
from router.placement.fleet.query_of_death import Deaths
from router.requests.pins import SharedPins
from router.requests.preview import PreviewedRequest
from router.requests.readings import limit_readings
from router.security.reload import FileWatch
from router.security.tls import serving_tls

log = logging.getLogger("warmroute.gateway")

BACKLOG = 4_096
LAST_WORDS_S = 1.0
"""How long clients may take to read the end of an answer that the drain deadline cut off."""
# The interval between two checks of the deadlines; less if the shortest timeout is under four times this value.
SWEEP_S = 0.5
_SHORTEST_SWEEP_S = 0.01
# The interval between two checks of accepted sockets that have no connection yet, as during a TLS handshake.
_LOOK_S = 0.1


class PublicServer:
    """The data plane: listens on the configured address and forwards requests.

    One timer checks all deadlines, so that a stream needs no timer of its own. A timeout is late by at most one sweep,
    and the sockets are read once more before it is judged.
    """

    def __init__(self, context: GatewayContext) -> None:
        self._config = context.config
        self._context = context
        self._files = FileWatch(context.metrics.reloads)
        self._parts: Assembly | None = None
        self._servers: list[Listener] = []
        self._listeners: list[socket.socket] = []
        self._acceptor: Acceptor | None = None
        self._passed = False
        self._handshake_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._judging: LastLook | None = None
        self._sweep_s = sweep_interval_s(context.config)

    async def start(
        self,
        listeners: Sequence[socket.socket] | None = None,
        *,
        accept_order: AcceptOrder | None = None,
        pins: SharedPins | None = None,
        deaths: Deaths | None = None,
        limits: RateTable | None = None,
    ) -> list[str]:
        """Listen on `listeners`, which are bound and listening, or on the configured address. Return the addresses.

        `accept_order` is given if other processes accept from the same listeners; `pins`, `deaths` and
        `limits` are then shared with them. An address is ``host:port``, ``[host]:port`` or the path of a Unix socket.
        The caller that chose the path of a Unix socket removes its file after `aclose`.

        Raises:
            ListenError: an address is not available.
        """
        loop = asyncio.get_running_loop()
        parts = Assembly(self._context, loop, accept_order)

        def connection() -> ClientConnection:
            return ClientConnection(parts.services)

        tls = serving_tls(self._config.tls)
        self._handshake_s = TLS_HANDSHAKE_S if tls is not None else SETTLE_S
        context = tls.context if tls is not None else None
        acceptor = self._acceptor = Acceptor(loop, connection, parts.drain.places, context)
        self._passed = listeners is not None
        self._listeners = list(listeners) if listeners is not None else public_sockets(self._config, BACKLOG)
        parts.identifier.pins.shared = pins
        if deaths is not None:
            parts.requests.quarantine.query_of_death.deaths = deaths
        if limits is not None:
            parts.callers.share_limits(limits)
        self._servers = [Listener(loop, acceptor, each, accept_order) for each in self._listeners]
        self._files.add("api_keys", parts.keys)
        self._files.add("tls", tls)
        self._files.start()
        self._parts = parts
        self._timer = loop.call_later(self._sweep_s, self._sweep)
        return [address_of(listener.getsockname()) for listener in self._listeners]

    def use_routes(self, routes: Sequence[RouteConfig]) -> None:
        self._configure(routes=tuple(routes))
        if self._parts is not None:
            self._parts.use_routes(routes)

    def use_models(self, models: Mapping[str, ModelConfig]) -> None:
        """Use other aliases, fallbacks, service levels and another default for the requests that follow."""
        self._configure(models=dict(models))
        if self._parts is not None:
            self._parts.use_models(models)

    def use_callers(self, tenants: Mapping[str, TenantConfig], limits: LimitsConfig) -> None:
        self._configure(tenants=dict(tenants), limits=limits)
        if self._parts is not None:
            self._parts.use_callers(tenants, limits)

    def _configure(self, **changed: Any) -> None:
        """Change the settings with which `start` makes the parts."""
        context = self._context
        self._context = dataclasses.replace(context, config=msgspec.structs.replace(context.config, **changed))

    @property
    def listeners(self) -> tuple[socket.socket, ...]:
        """The listening sockets, which a handover gives to another process."""
        return tuple(self._listeners)

    def drain(self) -> None:
        """Turn readiness off and send `Connection: close` with every further answer. New connections are accepted."""
        if self._parts is not None:
            self._parts.drain.drain()

    def end_drain(self) -> None:
        """Undo `drain`, if connections are still accepted. A connection whose answer said `Connection: close` still
        closes."""
        if self._parts is not None and self._parts.drain.accepts:
            self._parts.drain.draining = False

    async def stop_accepting(self, *, leave_queue: bool | None = None, settle_s: float = SETTLE_S) -> None:
        """Close the listeners, after `drain`.

        With `leave_queue`, connections in the listeners' queues are left to the other processes that hold the same
        sockets; otherwise they are accepted first. The default is True if `start` was called with `listeners`.
        """
        parts = self._parts
        if parts is None or self._acceptor is None or not parts.drain.accepts:
            return
        leave_queue = self._passed if leave_queue is None else leave_queue
        servers, self._servers = self._servers, []
        await close_listeners(servers, self._listeners, self._acceptor.take, leave_queue=leave_queue, settle_s=settle_s)
        parts.drain.accepts_no_more()

    async def accept_again(self, listeners: Sequence[socket.socket]) -> None:
        """Undo `drain` and `stop_accepting`. `listeners` are duplicates of the closed sockets.

        Raises:
            OSError: a socket no longer listens.
        """
        parts, acceptor = self._parts, self._acceptor
        assert parts is not None and acceptor is not None, "the gateway has not been started"
        self._listeners = list(listeners)
        self._servers = [Listener(parts.loop, acceptor, each) for each in self._listeners]
        parts.drain.accepts_again()

    async def drained(self) -> None:
        """Wait, after `stop_accepting`, until no connection is open or about to open."""
        if self._parts is not None:
            await self._emptied(self._parts)

    async def aclose(self, drain_s: float, *, leave_queue: bool | None = None) -> None:
        """Drain, stop accepting connections, and close after requests in progress have had `drain_s` to end.

        A connection closes after an answer that announces it. An idle connection stays open for
        `timeouts.drain_idle_s`, so that a client does not send a request into a closing connection.
        """
        parts = self._parts
        if parts is None:
            return
        parts.drain.drain()
        began_s = parts.loop.time()
        await self.stop_accepting(leave_queue=leave_queue, settle_s=min(SETTLE_S, drain_s))
        try:
            await asyncio.wait_for(self._emptied(parts), max(0.0, began_s + drain_s - parts.loop.time()))
        except TimeoutError:
            if parts.requests.running:
                log.warning("requests cut off at the drain deadline", extra={"requests": len(parts.requests.running)})
        parts.drain.closing = True
        parts.drain.places.cancel_opening()
        await _close_connections(parts)
        if self._timer is not None:
            self._timer.cancel()
        if self._judging is not None:
            self._judging.cancel()
        self._files.close()
        parts.close()

    async def _emptied(self, parts: Assembly) -> None:
        """Return once no connection is open or about to open."""
        late_s = parts.loop.time() + self._handshake_s
        while parts.drain.connections or (parts.drain.places.opening and parts.loop.time() < late_s):
            await (parts.drain.empty.wait() if parts.drain.connections else asyncio.sleep(_LOOK_S))

    async def preview(
        self, path: str, headers: Mapping[str, str], body: bytes, key_name: str | None = None
    ) -> PreviewedRequest:
        """Return the request that these bytes would become if sent with that key, identified but not dispatched.

        Raises:
            RequestError: as the public port would answer.
        """
        assert self._parts is not None, "the gateway has not been started"
        return await self._parts.preview.request(path, headers, body, key_name)

    def learn_worker_key(self, endpoint_id: str, key: str | None) -> None:
        """Set the API key that a worker added at run time requires; None if it requires none or was removed."""
        if self._parts is not None and self._parts.worker_keys is not None:
            self._parts.worker_keys.learn(endpoint_id, key)

    def limits(self) -> list[dict[str, Any]]:
        return self._parts.limits() if self._parts is not None else []

    def attainment(self, now_s: float) -> dict[str, float | None]:
        """Return the share of recent streams that met their service levels, by the role of their workers."""
        return self._parts.service_levels.attainment.statistics(now_s) if self._parts is not None else {}

    def in_flight(self) -> dict[str, int]:
        running = self._parts.requests.running if self._parts is not None else ()
        return dict(Counter(ticket.candidate.endpoint.id for request in running for ticket in request.tickets))

    def statistics(self) -> dict[str, Any]:
        parts = self._parts
        return {**parts.statistics(), "tasks": len(asyncio.all_tasks(parts.loop))} if parts is not None else {}

    def readings(self) -> Iterator[Reading]:
        yield from gateway_readings(self.statistics())
        yield from limit_readings(self.limits())
        if self._parts is not None:
            yield from self._parts.features.readings()

    def _sweep(self) -> None:
        parts = self._parts
        assert parts is not None
        self._timer = parts.loop.call_later(self._sweep_s, self._sweep)
        now_s = parts.loop.time()
        if self._judging is None and any(each.deadline_s <= now_s for each in parts.drain.connections):
            self._judging = LastLook(parts.loop, self._judge, parts)
        parts.pools.sweep(now_s)

    def _judge(self, parts: Assembly) -> None:
        self._judging = None
        now_s = parts.loop.time()
        for connection in [each for each in parts.drain.connections if each.deadline_s <= now_s]:
            try:
                connection.expired(now_s)
            except Exception:
                log.exception("deadline failed")
                connection.abort()


async def _close_connections(parts: Assembly) -> None:
    """End the remaining requests with an error, and close after `LAST_WORDS_S` at most."""
    for connection in list(parts.drain.connections):
        try:
            connection.shut_down()
        except Exception:
            log.exception("connection failed to shut down")
    try:
        await asyncio.wait_for(parts.drain.empty.wait(), LAST_WORDS_S)
    except TimeoutError:
        for connection in list(parts.drain.connections):
            connection.abort()
        await asyncio.sleep(0)  # aborted connections report it in the next iteration


def sweep_interval_s(config: Config) -> float:
    """Return the interval between two checks of the deadlines, in seconds."""
    timeouts = config.timeouts
    shortest_s = min(
        timeouts.connect_s,
        timeouts.first_event_s,
        timeouts.stream_idle_s,
        timeouts.total_s,
        timeouts.client_header_s,
        timeouts.client_body_s,
        timeouts.client_idle_s,
        timeouts.drain_idle_s or SWEEP_S,
        timeouts.upstream_idle_s,
        timeouts.header_delay_s,
        timeouts.comment_interval_s,
        timeouts.queue_s or SWEEP_S,
    )
    return max(_SHORTEST_SWEEP_S, min(SWEEP_S, shortest_s / 4))


def address_of(name: Any) -> str:
    if isinstance(name, tuple):
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
    return name.decode() if isinstance(name, bytes) else str(name)

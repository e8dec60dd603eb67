"""The pool of connections to workers: dialled on demand, kept idle for a few seconds."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, Protocol

from backends.connect_errors import OWN_SHORTAGE, is_refusal
from backends.keep_alive import keep_alive
from backends.worker import Endpoint
from router.gateway.http.upstream.connection import UpstreamConnection
from router.gateway.http.upstream.response_head import RepeatedResponse
from router.gateway.http.write_coalescer import WriteCoalescer
from router.metrics.instruments import Counter
from router.requests.worker_keys import WorkerKeys

log = logging.getLogger("warmroute.gateway")


class Dialler(Protocol):
    def dialled(self, connection: UpstreamConnection) -> None: ...

    def dial_failed(self, reason: str, *, own_shortage: bool) -> None:
        """The dial failed. `own_shortage`: this process lacks file descriptors, memory or ports."""

    def crashed(self) -> None:
        """One of the calls above raised. Called while the exception is handled."""


class ConnectionPool:
    """The way to the workers: idle connections by endpoint, and what every request to a worker needs.

    The last used connection is taken first, since its worker is least likely to close it. A connection is closed after
    `idle_s` without a request. That must be less than the worker's keep-alive time (vLLM: 5 s). Otherwise the worker
    may close the connection while a request is on its way.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        outbox: WriteCoalescer,
        idle_s: float,
        max_head_bytes: int,
        tls_for: Callable[[Endpoint], ssl.SSLContext | None],
        redials: Counter,
        keys: WorkerKeys | None,
        scheme: bytes,
        via: bytes,
    ) -> None:
        """`scheme` is that of the clients' URLs, and `via` the gateway's line in each request."""
        self.on_refusal: Callable[[Endpoint], None] | None = None
        """Called when an endpoint refuses a connection."""
        self.outbox = outbox
        self.redials = redials
        self.keys = keys
        self.scheme = scheme
        self.via = via
        self.loop = loop
        self._idle_s = idle_s
        self._max_head_bytes = max_head_bytes
        self._tls_for = tls_for
        self._idle: dict[Endpoint, list[UpstreamConnection]] = {}
        self._open: set[UpstreamConnection] = set()
        self._heads: dict[Endpoint, RepeatedResponse] = {}

    def take(self, endpoint: Endpoint) -> UpstreamConnection | None:
        idle = self._idle.get(endpoint)
        oldest_s = self.loop.time() - self._idle_s
        while idle:
            connection = idle.pop()
            if connection.usable and connection.idle_since_s > oldest_s:
                connection.reused = True
                return connection
            connection.abort()
        return None

    def dial(self, endpoint: Endpoint, dialler: Dialler) -> asyncio.Task[None]:
        """Open a connection. Exactly one method of `dialler` is called unless the task is cancelled."""
        return self.loop.create_task(self._dial(endpoint, dialler))

    async def _dial(self, endpoint: Endpoint, dialler: Dialler) -> None:
        try:
            try:
                tls = self._tls_for(endpoint)
                transport, connection = await self.loop.create_connection(
                    lambda: UpstreamConnection(self, endpoint, self._max_head_bytes),
                    endpoint.host,
                    endpoint.port,
                    ssl=tls,
                    server_hostname=endpoint.tls_name if tls is not None else None,
                )
            except OSError as error:
                if self.on_refusal is not None and is_refusal(error):
                    self.on_refusal(endpoint)
                dialler.dial_failed(str(error) or type(error).__name__, own_shortage=error.errno in OWN_SHORTAGE)
            else:
                keep_alive(transport.get_extra_info("socket"))
                if tls is not None:
                    _read_no_further(transport)
                self._dialled(connection, dialler)
        except Exception:
            dialler.crashed()

    def _dialled(self, connection: UpstreamConnection, dialler: Dialler) -> None:
        # only here, after the dial: a cancelled dial closes its transport without a call to the protocol
        if connection.usable:
            self._open.add(connection)
            connection.connected_s = self.loop.time()
            dialler.dialled(connection)
        else:
            dialler.dial_failed("the worker closed the connection at once", own_shortage=False)

    def repeated(self, endpoint: Endpoint) -> RepeatedResponse:
        return self._heads.setdefault(endpoint, RepeatedResponse())

    def closed(self, connection: UpstreamConnection) -> None:
        self._open.discard(connection)
        idle = self._idle.get(connection.endpoint)
        if idle and connection in idle:
            idle.remove(connection)

    def put(self, connection: UpstreamConnection) -> None:
        connection.idle_since_s = self.loop.time()
        self._idle.setdefault(connection.endpoint, []).append(connection)

    def sweep(self, now_s: float) -> None:
        """Close connections that were idle for too long."""
        for endpoint, idle in list(self._idle.items()):
            while idle and idle[0].idle_since_s <= now_s - self._idle_s:
                idle.pop(0).abort()
            if not idle:
                del self._idle[endpoint]
        for endpoint in self._heads.keys() - self._idle.keys() - {one.endpoint for one in self._open}:
            del self._heads[endpoint]

    def close(self) -> None:
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()

    def statistics(self) -> dict[str, Any]:
        return {
            "open": len(self._open),
            "idle": sum(map(len, self._idle.values())),
        }


def _read_no_further(transport: Any) -> None:
    """Stop reading from the socket as soon as reading is paused.

    uvloop's TLS would read on up to 256 KiB. If it met the end of the connection there, it would drop unread bytes.
    """
    transport.set_read_buffer_limits(high=1)

"""Connections to workers: dialled when needed, kept a few seconds between two requests."""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from collections.abc import Callable
from typing import Any, Protocol

from backends.worker import Endpoint
from router.gateway.http.upstream_connection import UpstreamConnection
from router.gateway.http.write_coalescer import WriteCoalescer

log = logging.getLogger("warmroute.gateway")

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""What we have run out of ourselves when a dial fails so: file descriptors, memory, ports."""


class Dialler(Protocol):
    """Who asked for a new connection."""

    def dialled(self, connection: UpstreamConnection) -> None:
        """It is there, and this caller's."""
        ...

    def dial_failed(self, reason: str, *, ours: bool) -> None:
        """It could not be made; `ours`: for want of something of our own."""
        ...

    def crashed(self) -> None:
        """One of the calls above raised; called while the exception is handled."""
        ...


class ConnectionPool:
    """Idle connections per endpoint, last used first: those are the least likely to be closed by the worker.

    An idle connection is dropped after `idle_s`, before the worker's own keep-alive limit closes it under a request
    (vLLM: 5 s).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        outbox: WriteCoalescer,
        idle_s: float,
        max_head_bytes: int,
        head_s: float,
        tls_for: Callable[[Endpoint], ssl.SSLContext | None] = lambda endpoint: None,
    ) -> None:
        self.on_refusal: Callable[[Endpoint], None] | None = None
        """Told when nobody listens at an endpoint."""
        self.outbox = outbox
        self.head_s = head_s
        self._loop = loop
        self._idle_s = idle_s
        self._max_head_bytes = max_head_bytes
        self._tls_for = tls_for
        self._idle: dict[Endpoint, list[UpstreamConnection]] = {}
        self._open: set[UpstreamConnection] = set()
        self.dials = 0
        self.reuses = 0

    def take(self, endpoint: Endpoint) -> UpstreamConnection | None:
        """An idle connection to `endpoint`, if a usable one is left."""
        idle = self._idle.get(endpoint)
        oldest_s = self._loop.time() - self._idle_s
        while idle:
            connection = idle.pop()
            if connection.usable and connection.idle_since_s > oldest_s:
                connection.reused = True
                self.reuses += 1
                return connection
            connection.abort()
        return None

    def dial(self, endpoint: Endpoint, dialler: Dialler) -> asyncio.Task[None]:
        """Start a new connection; exactly one of `dialler`'s methods is called unless the task is cancelled."""
        self.dials += 1
        return self._loop.create_task(self._dial(endpoint, dialler))

    async def _dial(self, endpoint: Endpoint, dialler: Dialler) -> None:
        try:
            try:
                tls = self._tls_for(endpoint)
                transport, connection = await self._loop.create_connection(
                    lambda: UpstreamConnection(self, endpoint, self._loop, self._max_head_bytes),
                    endpoint.host,
                    endpoint.port,
                    ssl=tls,
                    server_hostname=endpoint.host if tls is not None else None,
                )
            except OSError as error:
                if self.on_refusal is not None and is_refusal(error):
                    self.on_refusal(endpoint)
                dialler.dial_failed(str(error) or type(error).__name__, ours=error.errno in _OURS)
            else:
                if tls is not None:
                    _read_no_further(transport)
                self._dialled(connection, dialler)
        except Exception:
            dialler.crashed()

    def _dialled(self, connection: UpstreamConnection, dialler: Dialler) -> None:
        """Not before the dial has ended: one that is cancelled closes its transport without a word to the protocol."""
        if connection.usable:
            self._open.add(connection)
            connection.connected_s = self._loop.time()
            dialler.dialled(connection)
        else:
            dialler.dial_failed("closed by the worker at once", ours=False)

    def closed(self, connection: UpstreamConnection) -> None:
        """`connection` is down; if it was idle it is no longer offered."""
        self._open.discard(connection)
        idle = self._idle.get(connection.endpoint)
        if idle and connection in idle:
            idle.remove(connection)

    def put(self, connection: UpstreamConnection) -> None:
        """Keep `connection` for the next request to its endpoint."""
        connection.idle_since_s = self._loop.time()
        self._idle.setdefault(connection.endpoint, []).append(connection)

    def sweep(self, now_s: float) -> None:
        """Drop what has been idle too long."""
        for endpoint, idle in list(self._idle.items()):
            while idle and idle[0].idle_since_s <= now_s - self._idle_s:
                idle.pop(0).abort()
            if not idle:
                del self._idle[endpoint]

    def close(self) -> None:
        """Close every connection at once."""
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()

    def statistics(self) -> dict[str, Any]:
        """Open and idle connections, in all and idle ones per worker."""
        return {
            "open": len(self._open),
            "idle": sum(map(len, self._idle.values())),
            "idle_by_worker": {endpoint.authority: len(idle) for endpoint, idle in self._idle.items()},
            "dials": self.dials,
            "reuses": self.reuses,
        }


def is_refusal(error: OSError) -> bool:
    """Whether a dial failed because nobody listens, at none of the host's addresses."""
    if error.errno is not None:
        return error.errno == errno.ECONNREFUSED
    text, refusal = str(error), f"[Errno {errno.ECONNREFUSED}]"
    return refusal in text and text.count("[Errno ") == text.count(refusal)  # the loop joins them where they differ


def _read_no_further(transport: Any) -> None:
    """Once reading is paused, leave the rest to the socket. uvloop's TLS would go on up to 256 KiB, meet the end of the
    connection in there, and throw away what has not been read."""
    transport.set_read_buffer_limits(high=1)

"""Accepting connections from a listening socket.

Several processes may accept from one shared socket, the least loaded process first. SO_REUSEPORT would give each
process its own queue and choose by a hash of the addresses. With few long connections, some processes would get most of
them. Here, a process with more connections than another one steps back, and tries again a moment later. A client
therefore does not wait for a process that hangs.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from router.gateway.listen.connection_limit import AcceptOrder, ConnectionLimit
from router.gateway.listen.sockets import TLS_SHUTDOWN_S, prepare_accepted

log = logging.getLogger("warmroute.gateway")

STEP_BACK_S = 0.001
"""How long a process steps back for the others before it tries again."""
PATIENCE_S = 0.05
"""If no other process accepts for this long, the processes with fewer connections count as stuck. Until one of them
accepts again, this process accepts one connection per try. It takes no more, because the others may only be slow."""
TLS_HANDSHAKE_S = 10.0
"""Longest TLS handshake of a client: a few round trips, also on a slow path."""
ACCEPTS_PER_ITERATION = 32
"""Most connections that a single process accepts per event-loop iteration."""
EXHAUSTED_S = 0.5
"""Pause after a failed accept (no file descriptors, no memory)."""


class Acceptor:
    """Makes connections from accepted sockets, within `limit`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: Callable[[], Any],
        limit: ConnectionLimit,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.limit = limit
        self._loop = loop
        self._connection = connection
        self._tls = tls
        self.tls_handshake_s = TLS_HANDSHAKE_S
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, client: socket.socket) -> asyncio.Task[None] | None:
        """Open a connection, TLS included, in a new task. Return None if the limit is reached."""
        if not self.limit.has_room():
            client.close()
            return None
        connection = self._connection()
        self.limit.admit(connection)
        client.setblocking(False)
        task = self._loop.create_task(self._open(client, connection), name="accepted")
        self.limit.handshake_started(connection, task.cancel)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _open(self, client: socket.socket, connection: Any) -> None:
        tls = self._tls if client.family != socket.AF_UNIX else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                client,
                ssl=tls,
                ssl_handshake_timeout=self.tls_handshake_s if tls is not None else None,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S if tls is not None else None,
            )
        except OSError:  # the client left, or its handshake failed
            client.close()
            self.limit.left(connection)
        except BaseException:
            client.close()
            self.limit.left(connection)
            raise


class Listener:
    """Accepts from `listener` until `close`. `accept_order` decides between several processes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        acceptor: Acceptor,
        listener: socket.socket,
        accept_order: AcceptOrder | None = None,
    ) -> None:
        self._loop = loop
        self._acceptor = acceptor
        self._listener = listener
        self._accept_order = accept_order
        self._pause: asyncio.TimerHandle | None = None
        self._since_s: float | None = None
        self._taken = 0
        self._listener.setblocking(False)
        prepare_accepted(listener)
        if accept_order is not None:
            accept_order.open()
        self._watch()

    def close(self) -> None:
        """Stop accepting. Clients in the queue are left to the other processes."""
        if self._listener.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        if self._accept_order is not None:
            self._accept_order.close()
        self._listener.close()

    def _watch(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._readable)

    def _readable(self) -> None:
        accept_order = self._accept_order
        if accept_order is None:
            for _ in range(ACCEPTS_PER_ITERATION):
                if not self._accept():
                    return
        elif accept_order.goes_first():
            self._since_s = None
            self._accept()
        else:
            self._step_back(STEP_BACK_S)
            if self._waited_s(accept_order) >= PATIENCE_S:
                self._accept()

    def _waited_s(self, accept_order: AcceptOrder) -> float:
        """Return how long a client has waited while no other process accepted."""
        now_s = self._loop.time()
        taken = accept_order.accepted_by_others()
        if self._since_s is None or taken != self._taken:
            self._since_s, self._taken = now_s, taken
        return now_s - self._since_s

    def _step_back(self, for_s: float) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(for_s, self._watch)

    def _accept(self) -> bool:
        """Accept one connection. Return whether more may wait."""
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # another process was quicker
            return False
        except OSError as error:
            log.error("cannot accept connections", extra={"reason": str(error)})
            self._step_back(EXHAUSTED_S)
            return False
        self._acceptor.take(client)
        return True

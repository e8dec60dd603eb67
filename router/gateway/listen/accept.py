"""A listening socket, and the connections made of what it accepts.

Several processes may accept from one socket, the least loaded one first. All of them poll the one socket. SO_REUSEPORT
would give each its own queue and have a hash of the addresses choose: with few long
connections some processes then get most of them. Here a process that has more connections than another lets that one go
first, and looks again a moment later, so that one that hangs cannot keep clients out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

from router.gateway.listen.connection_limit import AcceptOrder, ConnectionLimit
from router.gateway.listen.drain import ListeningServer
from router.gateway.listen.sockets import TLS_SHUTDOWN_S, limit_kernel_buffer

log = logging.getLogger("warmroute.gateway")

STEP_BACK_S = 0.001
"""How long we leave a waiting client to the others before we look again."""
PATIENCE_S = 0.05
"""So long after, with nobody having taken any, those whose turn it is are taken for stuck. Until they take one again,
we take one at each look, and no more: they may only be slow, and then the rest is theirs."""
ACCEPTS_PER_TURN = 32
"""Connections that one process alone takes in one turn of the loop."""
EXHAUSTED_S = 0.5
"""Pause after an accept that the system refused (no file descriptors, no memory)."""


class Refused(asyncio.Protocol):
    """A connection for which there is no place."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        cast(asyncio.Transport, transport).abort()


class Acceptor:
    """Makes connections of accepted sockets, as many as `limit` has places for."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: Callable[[], Any],
        limit: ConnectionLimit,
        tls: ssl.SSLContext | None = None,
        tls_handshake_s: float | None = None,
    ) -> None:
        self.limit = limit
        self._loop = loop
        self._connection = connection
        self._tls = tls
        self._tls_handshake_s = tls_handshake_s
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, client: socket.socket) -> asyncio.Task[None] | None:
        """Open a connection, TLS included, in a task of its own; None where the limit does not allow it."""
        if not self.limit.has_room():
            client.close()
            return None
        connection = self._connection()
        self.limit.admit(connection)
        client.setblocking(False)
        task = self._loop.create_task(self._open(client, connection), name="accepted")
        self.limit.begins(connection, task.cancel)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def accepted(self) -> asyncio.BaseProtocol:
        """The protocol of a socket that the event loop itself has accepted: plain ones only, since it does not tell of
        handshakes that fail. It costs a third less than `take`."""
        if not self.limit.has_room():
            return Refused()
        connection = self._connection()
        self.limit.admit(connection)
        self.limit.begins(connection, connection.evict)
        return connection  # type: ignore[no-any-return]

    def secures(self, listener: socket.socket) -> bool:
        """Whether connections from `listener` begin with a TLS handshake."""
        return self._tls is not None and listener.family != socket.AF_UNIX

    async def _open(self, client: socket.socket, connection: Any) -> None:
        tls = self._tls if self.secures(client) else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                client,
                ssl=tls,
                ssl_handshake_timeout=self._tls_handshake_s if tls is not None else None,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S if tls is not None else None,
            )
        except OSError:  # it has gone, or its handshake failed
            client.close()
            self.limit.left(connection)
        except BaseException:
            client.close()
            self.limit.left(connection)
            raise


class Listener:
    """Accepts from `listener` until `close`; where several processes do, each when it is its turn."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        acceptor: Acceptor,
        listener: socket.socket,
        turns: AcceptOrder | None = None,
    ) -> None:
        self._loop = loop
        self._acceptor = acceptor
        self._listener = listener
        self._turns = turns
        self._pause: asyncio.TimerHandle | None = None
        self._since_s: float | None = None
        self._taken = 0
        self._listener.setblocking(False)
        limit_kernel_buffer(listener)
        if turns is not None:
            turns.open()
        self._watch()

    def close(self) -> None:
        """Accept no more. Clients in the queue are left to the other processes."""
        if self._listener.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        if self._turns is not None:
            self._turns.close()
        self._listener.close()

    def _watch(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._readable)

    def _readable(self) -> None:
        turns = self._turns
        if turns is None:
            for _ in range(ACCEPTS_PER_TURN):
                if not self._accept():
                    return
        elif turns.ours():
            self._since_s = None
            self._accept()
        else:
            self._step_back(STEP_BACK_S)
            if self._waited_s(turns) >= PATIENCE_S:
                self._accept()

    def _waited_s(self, turns: AcceptOrder) -> float:
        """How long the others have let a client wait."""
        now_s = self._loop.time()
        taken = turns.taken_by_others()
        if self._since_s is None or taken != self._taken:
            self._since_s, self._taken = now_s, taken
        return now_s - self._since_s

    def _step_back(self, for_s: float) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(for_s, self._watch)

    def _accept(self) -> bool:
        """Take one connection; whether there may be more."""
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


async def listen(
    loop: asyncio.AbstractEventLoop,
    acceptor: Acceptor,
    listener: socket.socket,
    backlog: int,
    turns: AcceptOrder | None = None,
) -> ListeningServer:
    """Accept from `listener`, by the event loop itself where that will do."""
    if turns is not None or acceptor.secures(listener):
        return Listener(loop, acceptor, listener, turns)
    limit_kernel_buffer(listener)
    if listener.family == socket.AF_UNIX:
        return await loop.create_unix_server(acceptor.accepted, sock=listener, backlog=backlog)
    return await loop.create_server(acceptor.accepted, sock=listener, backlog=backlog)

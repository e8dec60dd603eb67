"""The open connections of a gateway, and the state of its drain."""

from __future__ import annotations

import asyncio
from typing import Protocol

from router.gateway.listen.connection_limit import ConnectionLimit, CountedConnection


class OpenConnection(CountedConnection, Protocol):
    """A client's connection, as the drain and the limits use it."""

    deadline_s: float
    """`expired` is called at this time."""
    writable: bool

    def shorten_idle(self, by_s: float) -> None:
        """Shorten the wait for the next request by `by_s`; a negative value extends it."""

    def allow_unsent(self, size_bytes: int) -> None: ...
    def expired(self, now_s: float) -> None: ...
    def shut_down(self) -> None: ...
    def abort(self) -> None: ...


class DrainState:
    """Holds the open connections, and the limits on how long they stay open."""

    def __init__(self, places: ConnectionLimit, client_idle_s: float, drain_idle_s: float) -> None:
        self.places = places
        """The accepted sockets, including sockets without a connection yet."""
        self.connections: set[OpenConnection] = set()
        self._idle_s = client_idle_s
        self._drain_idle_s = drain_idle_s
        self.client_idle_s = client_idle_s
        """How long a client's connection may be idle; less after the listeners are closed."""
        self.draining = False
        """Whether every further answer has `Connection: close`."""
        self.closing = False
        """Whether the drain deadline has passed: connections close even if an answer promised to keep them open."""
        self.accepts = True
        """Whether new connections are accepted."""
        self.empty = asyncio.Event()
        """Set when no connection is open and no new ones are accepted."""

    def drain(self) -> None:
        self.draining = True

    def accepts_no_more(self) -> None:
        """Shorten the idle time of connections, because the listeners are closed."""
        self.accepts = False
        self._set_idle(min(self.client_idle_s, self._drain_idle_s))
        if not self.connections:
            self.empty.set()

    def accepts_again(self) -> None:
        """Undo `accepts_no_more` and `drain`. A connection whose response said `Connection: close` still closes."""
        self.draining = False
        self.accepts = True
        self.empty.clear()
        self._set_idle(self._idle_s)

    def _set_idle(self, idle_s: float) -> None:
        before_s, self.client_idle_s = self.client_idle_s, idle_s
        for connection in self.connections:
            connection.shorten_idle(before_s - idle_s)

    def joined(self, connection: OpenConnection) -> None:
        self.connections.add(connection)
        self.places.opened(connection)
        self.empty.clear()

    def left(self, connection: OpenConnection) -> None:
        self.connections.discard(connection)
        self.places.left(connection)
        if not self.accepts and not self.connections:
            self.empty.set()

"""The open connections of a gateway, and whether it drains."""

from __future__ import annotations

import asyncio
from typing import Protocol

from router.gateway.listen.connection_limit import ConnectionLimit, CountedConnection


class OpenConnection(CountedConnection, Protocol):
    """A client's connection, as the drain and the limits see it."""

    deadline_s: float
    """`expired` is called at this time."""
    writable: bool

    def shorten_idle(self, by_s: float) -> None:
        """Wait less long for a request; with a negative number, longer."""
        ...

    def allow_unsent(self, size_bytes: int) -> None:
        """Stop the worker once more than `size_bytes` are left unsent."""
        ...

    def expired(self, now_s: float) -> None:
        """The deadline has passed."""
        ...

    def shut_down(self) -> None:
        """End the request in progress with an error, then the connection."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class DrainState:
    """Which connections are open, and for how long they may go on."""

    def __init__(self, places: ConnectionLimit, client_idle_s: float, drain_idle_s: float) -> None:
        self.places = places
        """The accepted sockets, also those without a connection yet."""
        self.connections: set[OpenConnection] = set()
        self._idle_s = client_idle_s
        self._drain_idle_s = drain_idle_s
        self.client_idle_s = client_idle_s
        """How long a client's connection may be idle; less once no new ones are accepted."""
        self.draining = False
        """From now on every answer tells its client to close the connection."""
        self.closing = False
        """The time is up: no connection may go on, whatever its client was promised."""
        self.accepts = True
        """New connections may come."""
        self.empty = asyncio.Event()
        """Set when no connection is open, once no new ones are accepted."""

    def drain(self) -> None:
        """Turn readiness off. Connections stay open until an answer has told their client to close."""
        self.draining = True

    def accepts_no_more(self) -> None:
        """The listeners are closed: idle connections need not be kept for as long as before."""
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
        """Add a connection."""
        self.connections.add(connection)
        self.places.opened(connection)
        self.empty.clear()

    def left(self, connection: OpenConnection) -> None:
        """Remove a closed connection."""
        self.connections.discard(connection)
        self.places.left(connection)
        if not self.accepts and not self.connections:
            self.empty.set()

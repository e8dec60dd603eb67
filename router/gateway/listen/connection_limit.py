"""The limit on a port's connections, and which connection is closed for a new one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

HANDSHAKE_GRACE_S = 3.0
"""At the limit, a TLS handshake that takes longer than this is closed first."""
BETWEEN_REQUESTS_S = 1.0
"""A connection with a more recent response is not closed for a new one, since its next request may be on the way."""
_EVICTION_CANDIDATES = 4
"""Idle connections examined before a new one is refused. Connections with unsent bytes are skipped."""


class AcceptOrder(Protocol):
    """Decides which of several processes accepts the next connection."""

    def open(self) -> None: ...
    def close(self) -> None: ...
    def goes_first(self) -> bool: ...

    def accepted_by_others(self) -> int:
        """Return a number that changes whenever another process accepts."""

    def accepted(self) -> None: ...
    def closed(self) -> None: ...


class CountedConnection(Protocol):
    @property
    def unsent_bytes(self) -> int: ...
    def evict(self) -> None: ...


class ConnectionLimit:
    """Counts the sockets of one port, each from its accept to its close, TLS handshake included.

    At the limit, a new connection replaces the oldest handshake, if that is older than `HANDSHAKE_GRACE_S`. Otherwise
    it replaces the connection that has been idle longest, between two requests or before the first. If there is none,
    the new connection is refused. Each event takes constant time.
    """

    def __init__(self, limit: int, time: Callable[[], float], accept_order: AcceptOrder | None = None) -> None:
        self.limit = limit
        self.accept_order = accept_order
        self.evicted = 0
        """Connections closed for new ones."""
        self.refused = 0
        """Connections closed at accept."""
        self._time = time
        self._held: set[CountedConnection] = set()
        self._opening: OrderedDict[CountedConnection, tuple[float, Callable[[], object]]] = OrderedDict()
        self._unused: OrderedDict[CountedConnection, float] = OrderedDict()
        self._kept: OrderedDict[CountedConnection, float] = OrderedDict()

    @property
    def open(self) -> int:
        return len(self._held)

    @property
    def opening(self) -> int:
        """Accepted sockets without a protocol yet: TLS takes a while, and any socket takes one loop iteration."""
        return len(self._opening)

    def has_room(self) -> bool:
        """Return whether an accepted socket may stay, closing another one if needed. If False, close the socket."""
        if len(self._held) < self.limit or self._evict_one():
            return True
        self.refused += 1
        if self.accept_order is not None:  # other processes watch the number accepted
            self.accept_order.accepted()
            self.accept_order.closed()
        return False

    def admit(self, connection: CountedConnection) -> None:
        if self.accept_order is not None:
            self.accept_order.accepted()
        self._held.add(connection)

    def handshake_started(self, connection: CountedConnection, cancel: Callable[[], object]) -> None:
        self._opening[connection] = self._time(), cancel

    def opened(self, connection: CountedConnection) -> None:
        self._opening.pop(connection, None)
        if connection in self._held:
            self._unused[connection] = self._time()

    def idle(self, connection: CountedConnection, since_s: float) -> None:
        self.busy(connection)
        if connection in self._held:
            self._kept[connection] = since_s

    def busy(self, connection: CountedConnection) -> None:
        if self._kept.pop(connection, None) is None:
            self._unused.pop(connection, None)

    def left(self, connection: CountedConnection) -> None:
        """The socket closed. A second call does nothing."""
        self._opening.pop(connection, None)
        self.busy(connection)
        if connection in self._held:
            self._held.discard(connection)
            if self.accept_order is not None:
                self.accept_order.closed()

    def cancel_opening(self) -> None:
        for _, cancel in list(self._opening.values()):
            cancel()

    def statistics(self) -> dict[str, int]:
        return {"open": self.open, "opening": self.opening, "evicted": self.evicted, "refused": self.refused}

    def _evict_one(self) -> bool:
        now_s = self._time()
        if self._opening:
            connection, (since_s, cancel) = next(iter(self._opening.items()))
            if now_s - since_s >= HANDSHAKE_GRACE_S:
                self._evict(connection, cancel)
                return True
        for _ in range(_EVICTION_CANDIDATES):
            longest = self._longest_idle(now_s)
            if longest is None:
                return False
            if not longest.unsent_bytes:
                self._evict(longest, longest.evict)
                return True
            self.idle(longest, now_s)
        return False

    def _longest_idle(self, now_s: float) -> CountedConnection | None:
        unused_s, unused = _oldest(self._unused)
        kept_s, kept = _oldest(self._kept)
        if kept is not None and kept_s < unused_s and now_s - kept_s >= BETWEEN_REQUESTS_S:
            return kept
        return unused

    def _evict(self, connection: CountedConnection, close: Callable[[], object]) -> None:
        self.evicted += 1
        self.left(connection)
        close()


def _oldest(waiting: OrderedDict[CountedConnection, float]) -> tuple[float, CountedConnection | None]:
    for connection, since_s in waiting.items():
        return since_s, connection
    return float("inf"), None

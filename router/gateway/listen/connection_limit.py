"""How many sockets one port has accepted, against its limit, and which of them make room for a new one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

HANDSHAKE_GRACE_S = 3.0
"""A TLS handshake that has taken this long is closed first when a place is needed."""
BETWEEN_REQUESTS_S = 1.0
"""A connection whose last answer is younger than this is not closed to make room: its next request may be under way."""
_LOOKS = 4
"""Idle connections looked at before a new one is refused: one that has not taken its last answer yet is left alone."""


class AcceptOrder(Protocol):
    """Which of several processes is to take the next connection."""

    def open(self) -> None:
        """This process begins to take connections."""

    def close(self) -> None:
        """It takes no more."""

    def ours(self) -> bool:
        """Whether it is this process's turn."""

    def taken_by_others(self) -> int:
        """A number that changes while others take connections."""

    def took(self) -> None:
        """This process has taken one."""

    def left(self) -> None:
        """One of its connections has closed."""


class Holder(Protocol):
    """A connection that holds a place."""

    @property
    def unsent_bytes(self) -> int:
        """What its client has not taken yet."""
        ...

    def evict(self) -> None:
        """Close at once: the place is needed."""
        ...


class ConnectionLimit:
    """The places of one port. A socket holds one from its accept to its end, its TLS handshake included.

    When all are taken, a new connection gets the place of the handshake that has taken longest, if that is older than
    `HANDSHAKE_GRACE_S`, or else of the connection that has been idle for longest: between two requests, or without any
    so far. Only where there is none it is refused. Each event costs a constant time.
    """

    __slots__ = ("_held", "_kept", "_opening", "_time", "_unused", "evicted", "limit", "refused", "turns")

    def __init__(self, limit: int, time: Callable[[], float], turns: AcceptOrder | None = None) -> None:
        self.limit = limit
        self.turns = turns
        self.evicted = 0
        """Connections closed to make room."""
        self.refused = 0
        """Connections closed at accept."""
        self._time = time
        self._held: set[Holder] = set()
        self._opening: OrderedDict[Holder, tuple[float, Callable[[], object]]] = OrderedDict()
        self._unused: OrderedDict[Holder, float] = OrderedDict()
        self._kept: OrderedDict[Holder, float] = OrderedDict()

    @property
    def open(self) -> int:
        """Places taken."""
        return len(self._held)

    @property
    def opening(self) -> int:
        """Sockets accepted that are not connections yet: TLS takes a while, and anything takes a turn of the loop."""
        return len(self._opening)

    def has_room(self) -> bool:
        """Whether one more accepted socket may stay, perhaps in the place of another. False: close it."""
        if len(self._held) < self.limit or self._make_room():
            return True
        self.refused += 1
        if self.turns is not None:  # other processes go by how many were taken
            self.turns.took()
            self.turns.left()
        return False

    def admit(self, connection: Holder) -> None:
        """An accepted socket takes a place, after `has_room`."""
        if self.turns is not None:
            self.turns.took()
        self._held.add(connection)

    def begins(self, connection: Holder, cancel: Callable[[], object]) -> None:
        """Its handshake begins; `cancel` ends it."""
        self._opening[connection] = self._time(), cancel

    def opened(self, connection: Holder) -> None:
        """The connection is there; its client has sent nothing yet."""
        self._opening.pop(connection, None)
        if connection in self._held:
            self._unused[connection] = self._time()

    def idle(self, connection: Holder, since_s: float) -> None:
        """It waits for its next request."""
        self.busy(connection)
        if connection in self._held:
            self._kept[connection] = since_s

    def busy(self, connection: Holder) -> None:
        """A request has begun, or the connection is about to end."""
        if self._kept.pop(connection, None) is None:
            self._unused.pop(connection, None)

    def left(self, connection: Holder) -> None:
        """Its socket is closed. Does nothing the second time."""
        self._opening.pop(connection, None)
        self.busy(connection)
        if connection in self._held:
            self._held.discard(connection)
            if self.turns is not None:
                self.turns.left()

    def cancel_opening(self) -> None:
        """No handshake may go on."""
        for _, cancel in list(self._opening.values()):
            cancel()

    def statistics(self) -> dict[str, int]:
        """Places taken, handshakes among them, and what happened at the limit."""
        return {"open": self.open, "opening": self.opening, "evicted": self.evicted, "refused": self.refused}

    def _make_room(self) -> bool:
        now_s = self._time()
        if self._opening:
            connection, (since_s, cancel) = next(iter(self._opening.items()))
            if now_s - since_s >= HANDSHAKE_GRACE_S:
                self._evict(connection, cancel)
                return True
        for _ in range(_LOOKS):
            longest = self._longest_idle(now_s)
            if longest is None:
                return False
            if not longest.unsent_bytes:
                self._evict(longest, longest.evict)
                return True
            self.idle(longest, now_s)
        return False

    def _longest_idle(self, now_s: float) -> Holder | None:
        unused_s, unused = _oldest(self._unused)
        kept_s, kept = _oldest(self._kept)
        if kept is not None and kept_s < unused_s and now_s - kept_s >= BETWEEN_REQUESTS_S:
            return kept
        return unused

    def _evict(self, connection: Holder, close: Callable[[], object]) -> None:
        self.evicted += 1
        self.left(connection)
        close()


def _oldest(waiting: OrderedDict[Holder, float]) -> tuple[float, Holder | None]:
    for connection, since_s in waiting.items():
        return since_s, connection
    return float("inf"), None

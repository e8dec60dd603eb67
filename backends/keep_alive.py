"""TCP keep-alive: probes on silent connections.

A NAT or load balancer forgets a connection that is silent for minutes, as during an answer in one piece. It does so
after 350 s in a widespread case. Probes keep the entry, and show a peer that has vanished without a FIN.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final, Protocol

IDLE_S: Final = 60
"""Silence before the first probe."""
INTERVAL_S: Final = 15
PROBES: Final = 4
"""Unanswered probes after which the connection is lost."""
# macOS has another name for the idle time; a system without an option keeps its own value.
_OPTIONS: Final = (
    ("TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE", IDLE_S),
    ("TCP_KEEPINTVL", INTERVAL_S),
    ("TCP_KEEPCNT", PROBES),
)


class TcpSocket(Protocol):
    """A socket, or what an event loop shows of one."""

    @property
    def family(self) -> int: ...

    @property
    def setsockopt(self) -> Callable[[int, int, int], None]: ...


def keep_alive(connection: TcpSocket) -> None:
    """Switch the probes on. Connections accepted from a listener inherit its options."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

"""Options that all sockets for KV events share."""

from __future__ import annotations

import zmq

from backends.keep_alive import IDLE_S, INTERVAL_S, PROBES


def keep_alive(socket: zmq.Socket[bytes]) -> None:
    """Switch TCP keep-alive on for the connections that the socket makes from now on."""
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, IDLE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, INTERVAL_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, PROBES)

"""What all sockets for KV events share: their options, and the watch over their link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from backends.keep_alive import IDLE_S, INTERVAL_S, PROBES

MAX_MESSAGE_BYTES = 2 << 20
"""The largest batch that is read: about 280,000 tokens stored in one step, which is more than vLLM computes in one.

A larger batch breaks the connection. Applying one of this size takes a few tenths of a second of the event loop.
"""


def configure(socket: zmq.Socket[bytes], address: str, queued: int) -> None:
    """Set the options of a socket before it connects to `address`. `queued`: messages that wait here, 0 for all."""
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, queued)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.IPV6, int("[" in address))
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, IDLE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, INTERVAL_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, PROBES)


class LinkMonitor:
    """Call `on_up` after each completed handshake of `socket`, and `on_lost` after each disconnect, on the loop.

    KV events have no heartbeat, so silence does not show a lost link.
    """

    def __init__(self, socket: zmq.Socket[bytes], on_up: Callable[[], None], on_lost: Callable[[], None]) -> None:
        self._watched = socket
        self._on_up = on_up
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._events = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._loop.add_reader(self._events.FD, self._read)
        self._loop.call_soon(self._read)

    def close(self) -> None:
        if not self._events.closed:
            self._loop.remove_reader(self._events.FD)
            self._watched.disable_monitor()
            self._events.close(linger=0)

    def _read(self) -> None:
        while not self._events.closed:
            try:
                event = parse_monitor_message(self._events.recv_multipart(zmq.DONTWAIT))["event"]
            except zmq.Again:
                return
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._on_up()
            elif event == zmq.EVENT_DISCONNECTED:
                self._on_lost()

"""Closes a listener without a reset for clients that have connected already.

A closed listening socket resets every connection in its accept queue, and those clients may have sent a request. So
new handshakes are ignored first, the queue is accepted, and then the socket is closed. If another process holds the
same socket, it accepts the queue.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

SETTLE_S = 0.2
"""Time for started handshakes to end: a long round trip."""
_SO_ATTACH_FILTER = 26
"""From Linux's asm-generic/socket.h; Python does not export it."""
# Classic BPF over the TCP header: drop a SYN, accept everything else. A started handshake can still end. A new one gets
# no answer; the client retries a second later and finds the port closed.
_FLAGS_BYTE, _SYN = 13, 0x02
_NO_NEW_HANDSHAKES = (
    (0x30, 0, 0, _FLAGS_BYTE),  # load the byte of flags
    (0x45, 0, 1, _SYN),  # skip one instruction unless SYN is set
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # accept the whole packet
)

_FILTER = ctypes.create_string_buffer(b"".join([struct.pack("HBBI", *step) for step in _NO_NEW_HANDSHAKES]))
"""A global, because the kernel call gets only its address, and compiled code frees a local after its last use."""

log = logging.getLogger("warmroute.gateway")


class ListeningServer(Protocol):
    def close(self) -> None: ...


async def close_listeners(
    servers: Sequence[ListeningServer],
    listeners: Sequence[socket.socket],
    take: Callable[[socket.socket], Awaitable[None] | None],
    *,
    leave_queue: bool,
    settle_s: float = SETTLE_S,
) -> None:
    """Stop accepting, after all clients in the accept queue were passed to `take`.

    `take` returns an awaitable that ends when the connection is open, or None. With `leave_queue`, the queue is left to
    another process that holds the same sockets.
    """
    kept: list[socket.socket] = []
    if not leave_queue:
        if refuse_handshakes(listeners) and settle_s > 0:
            await asyncio.sleep(settle_s)
        kept = [listener.dup() for listener in listeners]
    for server in servers:
        server.close()
    for listener in kept:
        opening = [opens for client in _waiting(listener) if (opens := take(client)) is not None]
        listener.close()
        await asyncio.gather(*opening, return_exceptions=True)


def refuse_handshakes(listeners: Sequence[socket.socket]) -> bool:
    """Ignore new TCP handshakes on `listeners`, in all processes that hold them. Return False if none supports it.

    Clients that have started a handshake reach the accept queue within `SETTLE_S`.
    """
    return sum(map(_refuse_handshakes, listeners)) > 0


def _refuse_handshakes(listener: socket.socket) -> bool:
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    program = struct.pack("HL", len(_NO_NEW_HANDSHAKES), ctypes.addressof(_FILTER))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    except OSError:
        return False
    return True


def _waiting(listener: socket.socket) -> Iterator[socket.socket]:
    listener.setblocking(False)
    while True:
        try:
            client, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("cannot accept a connection from the queue", extra={"reason": str(error)})
            return
        yield client

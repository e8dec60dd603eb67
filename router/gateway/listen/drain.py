"""Closing a listener so that nobody who has reached it is turned away.

Closing a listening socket resets every connection that waits in its accept queue: the client has connected, has
perhaps sent its request, and loses it. So new connections are kept from starting first, what waits is accepted, and
then the socket is closed. Where another process holds the same socket there is nothing to save: the queue is its.
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
"""How long handshakes that have begun may take to end: a long round trip."""
_SO_ATTACH_FILTER = 26
"""Linux; Python has no name for it."""
# Classic BPF over the TCP header: a SYN is dropped, anything else goes on. A handshake under way can still end; a new
# one is not answered, and its client, trying again a second later, is refused as by any closed port.
_FLAGS_BYTE, _SYN = 13, 0x02
_NO_NEW_HANDSHAKES = (
    (0x30, 0, 0, _FLAGS_BYTE),  # load the byte of flags
    (0x45, 0, 1, _SYN),  # any of these bits set? else skip one
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # take all of it
)

_FILTER = ctypes.create_string_buffer(b"".join([struct.pack("HBBI", *step) for step in _NO_NEW_HANDSHAKES]))
"""Kept here: compiled code lets go of a local variable after its last use, and only its address is used later."""

log = logging.getLogger("warmroute.gateway")


class ListeningServer(Protocol):
    """A server, of asyncio's or of ours."""

    def close(self) -> None:
        """Accept no more, and close the listener."""
        ...


async def close_listeners(
    servers: Sequence[ListeningServer],
    listeners: Sequence[socket.socket],
    take: Callable[[socket.socket], Awaitable[None] | None],
    *,
    leave_queue: bool,
    settle_s: float = SETTLE_S,
) -> None:
    """Stop accepting. Who waits is accepted first, and handed to `take`, which returns what to await until the
    connection is there. With `leave_queue` the sockets' other holder does that."""
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
    """Have new connections to TCP listeners ignored, in every process that holds them; False where none can be. Who
    has begun to connect is in their queues within `SETTLE_S`."""
    return sum(map(_refuse_handshakes, listeners)) > 0


def _refuse_handshakes(listener: socket.socket) -> bool:
    """Have new connections to a TCP listener ignored; False where that cannot be."""
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    program = struct.pack("HL", len(_NO_NEW_HANDSHAKES), ctypes.addressof(_FILTER))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    except OSError:
        return False
    return True


def _waiting(listener: socket.socket) -> Iterator[socket.socket]:
    """The connections in the accept queue."""
    listener.setblocking(False)
    while True:
        try:
            client, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("a waiting connection could not be accepted", extra={"reason": str(error)})
            return
        yield client

from __future__ import annotations

import asyncio

from router.requests.body_buffer_limit import BodyBufferLimit

# After the gateway refuses a request that it has not read completely, it reads and discards the rest within these
# limits. Closing the socket at once could reset the connection before the client reads the answer (RFC 9112
# section 9.6).
LINGER_S = 2.0
LINGER_BYTES = 16_777_216


class ClientInput:
    """Starts and stops reading, and counts bytes of further requests (`ahead_bytes`) as body bytes."""

    __slots__ = ("_bodies", "_discarded_bytes", "_transport", "ahead_bytes", "paused")

    def __init__(self, bodies: BodyBufferLimit) -> None:
        self._bodies = bodies
        self._transport: asyncio.Transport | None = None
        self._discarded_bytes = 0
        self.ahead_bytes = 0
        self.paused = False

    def connected(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def lost(self) -> None:
        """Give back what was counted, because the connection is closed."""
        self.give_back_ahead()
        self._transport = None

    def set_reading(self, reading: bool) -> None:
        transport = self._transport
        if reading is not self.paused or transport is None or transport.is_closing():
            return
        self.paused = not reading
        if reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def take_ahead(self, size_bytes: int) -> bool:
        """Count the bytes of further requests that wait behind the one in progress. Return False if they do not fit."""
        if self._bodies.lend(size_bytes):
            self.ahead_bytes = size_bytes
            return True
        return False

    def give_back_ahead(self) -> None:
        if self.ahead_bytes:
            self._bodies.give_back(self.ahead_bytes)
            self.ahead_bytes = 0

    def discard(self, size_bytes: int) -> bool:
        """Count bytes that are discarded after a refusal. Return whether they exceed `LINGER_BYTES`."""
        self._discarded_bytes += size_bytes
        return self._discarded_bytes > LINGER_BYTES

from __future__ import annotations

import asyncio
from collections.abc import Callable

from router.gateway.http.write_coalescer import WriteCoalescer

# Larger pieces are written at once: coalescing saves nothing if one piece fills the socket's buffer.
LARGE_WRITE_BYTES = 32_768


class ClientOutput:
    """Writes to a client until it leaves. Afterwards, and before `connected`, every call does nothing.

    `write` sends at the end of the iteration. `write_now` sends at once; call `flush` before it if bytes wait.
    """

    __slots__ = ("_outbox", "_transport", "_unwritten", "write_now")

    def __init__(self, outbox: WriteCoalescer) -> None:
        self._outbox = outbox
        self._transport: asyncio.Transport | None = None
        self._unwritten: list[bytes] = []
        self.write_now: Callable[[bytes], None] = _nowhere

    def connected(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.write_now = transport.write

    def lost(self) -> None:
        """Discard the bytes that wait and all later ones, because the connection is closed."""
        self.write_now = _nowhere
        self._unwritten.clear()
        self._transport = None

    def write(self, data: bytes) -> None:
        unwritten = self._unwritten
        if not unwritten:
            self._outbox.add(self)
        unwritten.append(data)
        if len(data) > LARGE_WRITE_BYTES:
            self.flush()

    def hasten(self) -> None:
        """Write at once the bytes that wait, while the gateway is quiet: what follows may take long."""
        if self._outbox.quiet:
            self.flush()

    def flush(self) -> None:
        """Write at once the bytes that wait for the end of the iteration."""
        unwritten = self._unwritten
        if unwritten:
            data = unwritten[0] if len(unwritten) == 1 else b"".join(unwritten)
            unwritten.clear()
            if self._transport is not None and not self._transport.is_closing():
                self._transport.write(data)

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def allow_unsent(self, size_bytes: int) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.set_write_buffer_limits(high=size_bytes, low=size_bytes // 4)

    def end(self) -> None:
        """Write everything, and close the sending side; the whole connection where TLS knows no half-close."""
        self.flush()
        if self._transport is not None and not self._transport.is_closing():
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()

    def close(self) -> None:
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._unwritten.clear()
        if self._transport is not None:
            self._transport.abort()


def _nowhere(data: bytes) -> None: ...

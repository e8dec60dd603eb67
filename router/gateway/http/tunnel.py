"""A protocol switch (WebSocket): after the 101 bytes go both ways unread."""

from __future__ import annotations

from collections.abc import Callable


class Tunnel:
    """Both directions of one switched connection; `last_read_s` is the last byte of either."""

    __slots__ = ("_time", "_to_client", "_to_worker", "last_read_s")

    def __init__(
        self, to_worker: Callable[[bytes], None], to_client: Callable[[bytes], None], time: Callable[[], float]
    ) -> None:
        self._to_worker = to_worker
        self._to_client = to_client
        self._time = time
        self.last_read_s = time()

    def from_worker(self, data: bytes) -> None:
        """Bytes for the client."""
        self.last_read_s = self._time()
        self._to_client(data)

    def from_client(self, data: bytes) -> None:
        """Bytes for the worker."""
        self.last_read_s = self._time()
        self._to_worker(data)

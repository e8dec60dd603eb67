"""A WebSocket tunnel: after the 101 response, bytes pass both ways unread."""

from __future__ import annotations

from collections.abc import Callable


class Tunnel:
    """Both directions of one tunnel. `last_read_s` is the time of the last byte in either direction."""

    __slots__ = ("_time", "_to_client", "_to_worker", "last_read_s")

    def __init__(
        self, to_worker: Callable[[bytes], None], to_client: Callable[[bytes], None], time: Callable[[], float]
    ) -> None:
        self._to_worker = to_worker
        self._to_client = to_client
        self._time = time
        self.last_read_s = time()

    def from_worker(self, data: bytes) -> None:
        self.last_read_s = self._time()
        self._to_client(data)

    def from_client(self, data: bytes) -> None:
        self.last_read_s = self._time()
        self._to_worker(data)

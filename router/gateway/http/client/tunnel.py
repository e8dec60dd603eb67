"""A WebSocket tunnel: after the 101 response, bytes pass both ways unread."""

from __future__ import annotations

import math
from collections.abc import Callable

METERED_BYTES = 4_096
"""A caller with limits is charged whenever a tunnel has carried 4,096 more bytes."""


class Tunnel:
    """Both directions of one tunnel. `last_read_s` is the time of the last byte in either direction.

    `carried_bytes` counts both directions. `metered` is called every `METERED_BYTES`.
    """

    __slots__ = ("_metered", "_next_bytes", "_time", "_to_client", "_to_worker", "carried_bytes", "last_read_s")

    def __init__(
        self,
        to_worker: Callable[[bytes], None],
        to_client: Callable[[bytes], None],
        time: Callable[[], float],
        metered: Callable[[], None] | None = None,
    ) -> None:
        self._to_worker = to_worker
        self._to_client = to_client
        self._time = time
        self._metered = metered
        self._next_bytes = math.inf if metered is None else METERED_BYTES
        self.carried_bytes = 0
        self.last_read_s = time()

    def from_worker(self, data: bytes) -> None:
        self._carries(data)
        self._to_client(data)

    def from_client(self, data: bytes) -> None:
        self._carries(data)
        self._to_worker(data)

    def _carries(self, data: bytes) -> None:
        self.last_read_s = self._time()
        self.carried_bytes += len(data)
        if self.carried_bytes >= self._next_bytes and self._metered is not None:
            self._next_bytes = self.carried_bytes + METERED_BYTES
            self._metered()

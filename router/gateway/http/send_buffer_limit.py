"""The limit on memory for unsent responses, over all connections."""

from __future__ import annotations

from typing import Protocol

from router.config.budgets import RESPONSES
from router.config.model import LimitsConfig


class SlowReader(Protocol):
    """A client connection that does not read fast enough."""

    @property
    def unsent_bytes(self) -> int: ...
    def allow_unsent(self, size_bytes: int) -> None: ...

    def cut_off(self) -> None:
        """Close in the next loop iteration. A write to the connection may be in progress now."""


WRITE_BUFFER_BYTES = 65_536
"""Unsent bytes of one response at which its worker is paused: a few reads of a socket."""


class SendBufferLimit:
    """Counts unsent bytes of paused connections, oldest pause first.

    Counts change only when a transport pauses or resumes, so a client that reads costs nothing. While less than half
    of the limit is used, each connection may leave `allowance_bytes` unsent. Above half, the allowance is zero: a
    worker is paused at the first write that is not sent at once. Reads in progress still arrive, so the sum may grow
    further with thousands of slow readers. Above the limit, the connection that was paused first is closed, because
    any other measure would slow down clients that read.
    """

    def __init__(self, limits: LimitsConfig, write_buffer_bytes: int = WRITE_BUFFER_BYTES) -> None:
        self._limit_bytes = RESPONSES.of(limits)
        self._write_buffer_bytes = write_buffer_bytes
        self._paused: dict[SlowReader, int] = {}
        self._tight = False
        self.used_bytes = 0
        self.cut = 0

    @property
    def allowance_bytes(self) -> int:
        """Bytes that one connection may leave unsent now."""
        return 0 if self._tight else self._write_buffer_bytes

    def paused(self, reader: SlowReader, size_bytes: int) -> bool:
        """Count a paused reader with `size_bytes` unsent. Return whether the allowance of all connections changed."""
        self._paused[reader] = size_bytes
        self.used_bytes += size_bytes
        while self.used_bytes > self._limit_bytes:
            self._relieve()
        return self._adapt()

    def _relieve(self) -> None:
        """Close the reader that was paused first. If it has read since, move it to the end of the queue instead."""
        oldest = next(iter(self._paused))
        before_bytes = self._paused.pop(oldest)
        self.used_bytes -= before_bytes
        now_bytes = oldest.unsent_bytes
        if now_bytes < before_bytes:
            self._paused[oldest] = now_bytes
            self.used_bytes += now_bytes
        else:
            self.cut += 1
            oldest.cut_off()

    def resumed(self, reader: SlowReader) -> bool:
        """Remove a reader that resumed or closed. Return whether the allowance of all connections changed."""
        self.used_bytes -= self._paused.pop(reader, 0)
        return self._adapt()

    def _adapt(self) -> bool:
        # hysteresis: tight above half of the limit, loose again below a quarter
        tight = self.used_bytes * (4 if self._tight else 2) > self._limit_bytes
        changed, self._tight = tight is not self._tight, tight
        return changed

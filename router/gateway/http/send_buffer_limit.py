"""How much of answers is kept in memory for clients that do not read fast enough, over all connections."""

from __future__ import annotations

from typing import Protocol

from router.config.budgets import RESPONSES
from router.config.model import LimitsConfig


class SlowReader(Protocol):
    """A client connection."""

    @property
    def unsent_bytes(self) -> int:
        """What it leaves unsent now."""
        ...

    def allow_unsent(self, size_bytes: int) -> None:
        """Pause the worker once more than this is left unsent."""
        ...

    def cut_off(self) -> None:
        """Close in the next turn of the loop: this one may be in the middle of a write to it."""
        ...


class SendBufferLimit:
    """Bytes left unsent by clients whose workers are paused for it, oldest pause first.

    Looked at only when a transport pauses or resumes, so a client that reads costs nothing. While less than half of
    the limit is used each connection may leave `allowance_bytes` unsent. From there on it is nought for all of them: a
    worker is paused at the first write that does not go out whole. A read that was under way still comes, so with
    thousands of readers the sum may go on growing; beyond the limit the one that has waited longest is cut off, for
    every other remedy would take from clients that read.
    """

    __slots__ = ("_limit_bytes", "_paused", "_tight", "_write_buffer_bytes", "cut", "used_bytes")

    def __init__(self, limits: LimitsConfig) -> None:
        self._limit_bytes = RESPONSES.of(limits)
        self._write_buffer_bytes = limits.write_buffer_bytes
        self._paused: dict[SlowReader, int] = {}
        self._tight = False
        self.used_bytes = 0
        self.cut = 0

    @property
    def allowance_bytes(self) -> int:
        """What one connection may leave unsent now."""
        return 0 if self._tight else self._write_buffer_bytes

    def paused(self, reader: SlowReader, size_bytes: int) -> bool:
        """`reader` leaves `size_bytes` unsent. True when the other connections' allowance is to be set anew."""
        self._paused[reader] = size_bytes
        self.used_bytes += size_bytes
        while self.used_bytes > self._limit_bytes:
            self._relieve()
        return self._adapt()

    def _relieve(self) -> None:
        """Cut off the reader that has waited longest, unless it turns out to read: then it goes to the end of the line
        with what it has left."""
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
        """`reader` takes bytes again, or is gone. True when the other connections' allowance is to be set anew."""
        self.used_bytes -= self._paused.pop(reader, 0)
        return self._adapt()

    def _adapt(self) -> bool:
        """Between half and a quarter of the limit nothing changes, so that it does not change all the time."""
        tight = self.used_bytes * (4 if self._tight else 2) > self._limit_bytes
        changed, self._tight = tight is not self._tight, tight
        return changed

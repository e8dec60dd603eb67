"""The workers of stored responses: each replica knows those that the others have learned."""

from __future__ import annotations

import math
from typing import Protocol

from router.replicas.messages import MOST_PINS, PIN_BYTES, Pinned

LOOK_S = 0.1
"""Time between two looks for new pins. A client needs longer to read a response and to continue it."""


class HostPins(Protocol):
    """The pins of this host (`router.process.shared_memory.pins.ResponsePins`): pairs of 8-byte words."""

    def fresh(self, most: int) -> bytes:
        """Return up to `most` pins that were learned here and not returned before."""

    def part(self, at: int, places: int) -> tuple[bytes, int]:
        """Return all pins at `places` places of the table from `at` on, and where to go on; 0 at the end."""

    def write(self, pins: bytes, *, replace: bool) -> None:
        """Take on pins. Without `replace`, a place that has one keeps it."""


class FleetPins:
    """Pins out, pins in. All known ones are sent once to each replica that is new, so that they outlive a restart."""

    def __init__(self, host: HostPins) -> None:
        self._host = host
        self._next_s = -math.inf
        self._at: int | None = 0

    def out(self, now_s: float) -> Pinned:
        known = b""
        if self._at is not None:
            known, at = self._host.part(self._at, MOST_PINS)
            self._at = at or None
        if now_s < self._next_s:
            return Pinned(b"", known)
        self._next_s = now_s + LOOK_S
        return Pinned(self._host.fresh(MOST_PINS), known)

    def lost(self) -> None:
        """Send all again, because a message was lost."""
        self._at = 0

    def heard(self, pinned: Pinned, *, new: bool) -> None:
        """Take on the pins of another replica. `new`: it was not heard before."""
        if new:
            self._at = 0
        for pins, replace in ((pinned.known, False), (pinned.fresh, True)):
            if pins and len(pins) % PIN_BYTES == 0:
                self._host.write(pins, replace=replace)

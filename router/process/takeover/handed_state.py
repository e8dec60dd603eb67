"""The desired state on its way to a successor: a file without a name, whose descriptor both processes hold.

A packet is too small for the state of a large fleet with its history. The running gateway writes the file when it
offers its sockets, and again when it has stopped making changes.
"""

from __future__ import annotations

import logging
import os

from router.control.state_file import Stored, decode, encode

log = logging.getLogger("warmroute.process")


class HandedState:
    """The file, by a descriptor that this object owns."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = os.memfd_create("warmroute-state") if descriptor is None else descriptor

    def write(self, stored: Stored) -> None:
        """Replace what the file holds."""
        text = encode(stored)
        os.ftruncate(self.descriptor, 0)
        written = 0
        while written < len(text):
            written += os.pwrite(self.descriptor, text[written:], written)

    def read(self) -> Stored:
        """Return what the file holds.

        Raises:
            ValueError: it was written by another version, or not to its end.
        """
        decoded = decode(os.pread(self.descriptor, os.fstat(self.descriptor).st_size, 0))
        if decoded.ignored:
            log.warning("a part of the handed state is ignored", extra={"reason": decoded.ignored})
        return decoded.stored

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

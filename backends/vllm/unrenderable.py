"""The error for a prompt that cannot be rendered here."""

from __future__ import annotations


class Unrenderable(Exception):
    """Local files do not give the token ids of this body; `reason` is for logs and counters.

    `refused` means that the request itself is at fault, and a worker should refuse it too. Then no worker is asked to
    tokenise it.
    """

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.refused = refused


class BrokenFile(Unrenderable):
    """A tokenizer file or a chat template exists, but cannot be read or parsed."""

"""The error for a prompt that cannot be rendered here."""

from __future__ import annotations


class Unrenderable(Exception):
    """This body's token ids cannot be known from local files; `reason` is for logs and counters.

    `refused` means that the request itself is at fault, and a worker should refuse it too. To ask a worker to tokenise
    it is then pointless.
    """

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.refused = refused

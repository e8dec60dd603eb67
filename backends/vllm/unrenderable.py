"""Why a prompt cannot be rendered here."""

from __future__ import annotations


class Unrenderable(Exception):
    """This body's token ids cannot be told from local files; `reason` is for logs and counters.

    `refused` says that the request itself is at fault (a worker is expected to refuse it too); then asking a worker
    to tokenise it is pointless.
    """

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.refused = refused

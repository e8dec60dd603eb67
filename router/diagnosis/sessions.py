"""The turns of sessions: which request continues which earlier one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from policies.view import WorkerId

MOST_SESSIONS = 20_000
"""Sessions that are remembered. The one whose latest turn is oldest is forgotten first."""
TAIL_BLOCKS = 512
"""Blocks at the end of a prompt among which the end of the earlier one is looked for. A turn that adds more counts as a
first turn."""
GROWTH_BLOCKS = 2
"""Blocks by which a prompt is longer than the one that it continues. Prompts that differ in less share an opening."""


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One turn of a session: its number from 1, its prompt's length, and the worker that served it."""

    number: int
    prompt_tokens: int
    worker: WorkerId


class Sessions:
    """The latest turn of each session, by the last full block of its prompt.

    A prompt without blocks is known by the id of its session. An id alone says less: one session may have several
    conversations at a time.
    """

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._latest: OrderedDict[str | int, Turn] = OrderedDict()
        """A plain dictionary takes 20 us to find its first key, once many keys before it were removed."""

    def before(
        self, session_id: str | None, hashes: Sequence[int], prompt_tokens: int, block_tokens: int
    ) -> Turn | None:
        """Return the turn that a request continues, and forget it; None for a first turn."""
        latest = self._latest
        if not hashes:
            return None if session_id is None else latest.pop(session_id, None)
        # the last block that ends an earlier prompt ends the longest one
        key = next(filter(latest.__contains__, reversed(hashes[-TAIL_BLOCKS:])), None)
        if key is None or prompt_tokens < latest[key].prompt_tokens + GROWTH_BLOCKS * block_tokens:
            return None
        return latest.pop(key)

    def ended(self, session_id: str | None, hashes: Sequence[int], turn: Turn) -> None:
        """Remember a turn. Without blocks and session id there is nothing to know the next turn by."""
        key = hashes[-1] if hashes else session_id
        if key is None:
            return
        self._latest[key] = turn
        if len(self._latest) > self._most:
            self._latest.popitem(last=False)

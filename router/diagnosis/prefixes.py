"""Shared prefixes that requests find cached, by how many prompt tokens they save."""

from __future__ import annotations

from heapq import nlargest

import msgspec

MOST_PREFIXES = 2_000
"""Prefixes that are counted. When there are more, the half that saves less is forgotten."""
FADING = 0.93
"""Weight of the past after a minute: about the last quarter of an hour counts."""


class SharedPrefix(msgspec.Struct, gc=False):
    """A prefix by the hash of its last block: its length, and how often first turns found it cached, recently."""

    block_hash: int
    tokens: int
    hits: float

    @property
    def saved_tokens(self) -> float:
        """The prompt tokens that were not computed."""
        return self.tokens * self.hits


class HotPrefixes:
    """Counts hits, which weigh less after each call of `fade`."""

    def __init__(self, most: int = MOST_PREFIXES) -> None:
        self._most = most
        self._found: dict[int, SharedPrefix] = {}

    def hit(self, block_hash: int, tokens: int) -> None:
        """Count a request that found the prefix of `tokens` cached."""
        known = self._found.get(block_hash)
        if known is not None:
            known.hits += 1.0
            return
        self._found[block_hash] = SharedPrefix(block_hash, tokens, 1.0)
        if len(self._found) > self._most:
            self._found = {one.block_hash: one for one in self.hottest(self._most // 2)}

    def hottest(self, most: int) -> list[SharedPrefix]:
        """Return the prefixes that save the most tokens, best first."""
        return nlargest(most, self._found.values(), key=lambda one: one.saved_tokens)

    def fade(self) -> None:
        """Let a minute pass."""
        for one in self._found.values():
            one.hits *= FADING
        self._found = {block_hash: one for block_hash, one in self._found.items() if one.hits > 0.01}

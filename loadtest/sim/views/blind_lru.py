"""The last N blocks sent to a worker, whatever the size of its cache.

llm-d's approximate scorer keeps 31,250 blocks of 16 tokens per worker unless the worker's own number is configured.
sglang-router's tree keeps 2**26 characters, about 16.8 million tokens, which is in effect no bound.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from policies.view import Residency

LLMD_TOKENS = 31_250 * 16
SGLANG_TOKENS = 2**26 // 4
"""2**26 characters, at four characters per token."""


class BlindLru:
    """Blocks by last use. The end of a chain is touched first, so that leaves are also forgotten first."""

    __slots__ = ("_blocks", "_capacity_blocks")

    residency = Residency.APPROXIMATE

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity_blocks = capacity_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def remember(self, chain: Sequence[int]) -> None:
        """Note all blocks of the chain; the least recently sent blocks make way for them."""
        for block in reversed(chain):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity_blocks:
            self._blocks.popitem(last=False)

    def known(self, chain: Sequence[int]) -> int:
        """Count the blocks up to the first one that is not kept."""
        for count, block in enumerate(chain):
            if block not in self._blocks:
                return count
        return len(chain)

    def statistics(self) -> dict[str, int]:
        """Count the blocks kept."""
        return {"blocks": len(self._blocks)}

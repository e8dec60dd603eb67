"""The last N blocks sent to a worker, whatever its cache can hold.

llm-d's approximate scorer keeps 31,250 blocks of 16 tokens per worker unless the worker's own number is configured;
sglang-router's tree 2**26 characters, about 16.8 million tokens, which is in effect no bound.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from policies.view import Residency

LLMD_TOKENS = 31_250 * 16
SGLANG_TOKENS = 2**26 // 4
"""At four characters per token."""


class BlindLru:
    """Blocks by last use. Tails are touched first, so that leaves are also forgotten first."""

    __slots__ = ("_blocks", "_capacity_blocks")

    residency = Residency.APPROXIMATE

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity_blocks = capacity_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def remember(self, chain: Sequence[int]) -> None:
        """All of its blocks, for the least recently sent ones."""
        for block in reversed(chain):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity_blocks:
            self._blocks.popitem(last=False)

    def known(self, chain: Sequence[int]) -> int:
        """Up to the first block that is not kept."""
        for count, block in enumerate(chain):
            if block not in self._blocks:
                return count
        return len(chain)

    def statistics(self) -> dict[str, int]:
        """Blocks kept."""
        return {"blocks": len(self._blocks)}

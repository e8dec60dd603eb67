from __future__ import annotations

from collections.abc import Callable

from router.residency.cache_model import ModelBudget
from router.residency.exact.blocks import BlockIndex
from router.residency.exact.difference import Difference
from router.residency.in_flight import ReservedBlocks
from router.residency.view import PlacedBlocks


class SharedCaches:
    """What the caches of one residency map share.

    `stale` are the slots of caches whose copied values are out of date, and `changes` counts changes of such values.
    """

    def __init__(self, approximate_bytes: int, relearn_blocks_per_s: int) -> None:
        self.index = BlockIndex()
        self.in_flight = ReservedBlocks()
        self.models = ModelBudget(approximate_bytes)
        self.stale: set[int] = set()
        self.changes = 0
        self.relearn_blocks_per_s = relearn_blocks_per_s
        self.on_settled: list[Callable[[int, Difference], None]] = []
        self.on_placed: list[Callable[[PlacedBlocks], None]] = []

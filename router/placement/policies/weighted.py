"""A choice among names by weight, which is the same for equal keys."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate

from xxhash import xxh3_64_intdigest


class WeightedNames:
    """Draws one of `weights`, by name. `seed` makes the draws of one key differ from those of other instances."""

    __slots__ = ("_bounds", "_seed", "names")

    def __init__(self, seed: str, weights: Mapping[str, int]) -> None:
        self._seed = seed
        self.names = tuple(weights)
        self._bounds = tuple(accumulate(weights.values()))

    def draw(self, key: str) -> str:
        draw = xxh3_64_intdigest(f"{self._seed}\0{key}".encode()) % self._bounds[-1]
        return self.names[bisect_right(self._bounds, draw)]

"""A choice among names by weight: the same one for equal keys, or in turn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Final

from xxhash import xxh3_64_intdigest

_GOLDEN: Final = 0.618_033_988_749_894_8
"""Multiples of it, without their whole parts, are spread evenly at any time."""


class WeightedNames:
    """Chooses one of `weights`, by name. `seed` makes the draws of one key differ from those of other instances."""

    __slots__ = ("_bounds", "_seed", "_turns", "names")

    def __init__(self, seed: str, weights: Mapping[str, int]) -> None:
        self._seed = seed
        self.names = tuple(weights)
        self._bounds = tuple(accumulate(weights.values()))
        self._turns = 0

    def turn(self) -> str:
        """Return the name whose turn it is. After any number of turns the shares are those of the weights."""
        self._turns += 1
        return self.names[bisect_right(self._bounds, self._turns * _GOLDEN % 1.0 * self._bounds[-1])]

    def draw(self, key: str) -> str:
        draw = xxh3_64_intdigest(f"{self._seed}\0{key}".encode()) % self._bounds[-1]
        return self.names[bisect_right(self._bounds, draw)]

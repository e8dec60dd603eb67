"""Tokens that depend on nothing but the ids before them, as a model's do at temperature 0 or with a seed.

So another worker continues an answer with exactly the tokens that the first one would have generated.
"""

from __future__ import annotations

import zlib
from array import array
from dataclasses import dataclass

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_SHARE_BITS = 20


@dataclass(frozen=True, slots=True)
class Draw:
    """One random number, in independent parts: two shares from 0 up to 1, and a `choice` among words."""

    stop_share: float
    character_share: float
    choice: int


class SeededDraws:
    """The draws of one request: a hash of `seed`, the prompt and the answer so far."""

    __slots__ = ("_digest", "_seed", "tokens")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._digest = 0
        self.tokens = 0
        """Length of the prompt and the answer so far."""

    def afresh(self) -> SeededDraws:
        """Return the draws of the same request before its first token."""
        return SeededDraws(self._seed)

    def extend(self, ids: array[int]) -> None:
        """Add the next ids; type code "I"."""
        self._digest = zlib.crc32(ids.tobytes(), self._digest)
        self.tokens += len(ids)

    def draw(self) -> Draw:
        number = _mixed((self._digest << 32 | self.tokens) ^ self._seed * _GOLDEN)
        return split_number(number)


def split_number(number: int) -> Draw:
    """Return the parts of a random number of 64 bits."""
    unit = 1 << _SHARE_BITS
    return Draw(number % unit / unit, (number >> _SHARE_BITS) % unit / unit, number >> 2 * _SHARE_BITS)


def seeded_draws(temperature: float | None, seed: int | None) -> SeededDraws | None:
    """Return the draws of a request, None if its sampling is random: a temperature above 0 without a seed."""
    if temperature == 0:
        return SeededDraws(0)
    return SeededDraws(seed) if seed is not None and seed != -1 else None


def _mixed(number: int) -> int:
    """Return splitmix64's finalizer: every bit depends on every bit."""
    number = (number ^ (number & _MASK) >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _MASK
    return number ^ number >> 31

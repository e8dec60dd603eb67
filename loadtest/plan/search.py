"""The least count that holds, in as few tries as doubling and bisection take."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TypeAlias, TypeVar

Search: TypeAlias = Generator[int, bool, int | None]
"""Yields counts to try, receives whether each holds, and returns the least one that does; None if none does."""

K = TypeVar("K")


def least(guess: int, most: int) -> Search:
    """Search from 1 to `most`, provided that more never hold less: from `guess` on in steps that double."""
    low, high, step = 0, most + 1, 1
    count = max(1, min(guess, most))
    while high - low > 1:
        if (yield count):
            high = count
        else:
            low = count
        if low and high <= most:
            count = (low + high) // 2
        else:
            count = max(1, high - step) if high <= most else min(most, low + step)
            step *= 2
    return high if high <= most else None


def found(search: Search, holds: Callable[[int], bool]) -> int | None:
    """Run one search to its end."""
    return found_each({None: search}, lambda counts: {None: holds(counts[None])})[None]


def found_each(
    searches: Mapping[K, Search], hold: Callable[[Mapping[K, int]], Mapping[K, bool]]
) -> dict[K, int | None]:
    """Run several searches side by side: `hold` answers for one count of each that has not ended."""
    results: dict[K, int | None] = {}
    answers: Mapping[K, bool | None] = dict.fromkeys(searches)
    while answers:
        counts: dict[K, int] = {}
        for key, answer in answers.items():
            try:
                counts[key] = searches[key].send(answer)  # type: ignore[arg-type]
            except StopIteration as end:
                results[key] = end.value
        answers = hold(counts) if counts else {}
    return results

"""The least count that holds, in as few tries as doubling and bisection take."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TypeAlias, TypeVar

Search: TypeAlias = Generator[int, bool, int | None]
"""Yields counts to try, receives whether each holds, and returns the least one that does; None if none does."""

K = TypeVar("K")
Try = TypeVar("Try")
Seen = TypeVar("Seen")
Found = TypeVar("Found")


def least(guess: int, most: int, low: int = 0) -> Search:
    """Search from 1 to `most`, provided that more never hold less: from `guess` on in steps that double.

    A count of `low`, and those below, are known not to hold.
    """
    high, step = most + 1, 1
    count = max(low + 1, min(guess, most))
    while high - low > 1:
        if (yield count):
            high = count
        else:
            low = count
        if low and high <= most:
            count = (low + high) // 2
        else:
            count = max(low + 1, high - step) if high <= most else min(most, low + step)
            step *= 2
    return high if high <= most else None


def found_each(
    searches: Mapping[K, Generator[Try, Seen, Found]], look: Callable[[Mapping[K, Try]], Mapping[K, Seen]]
) -> dict[K, Found]:
    """Run several searches side by side: `look` answers for one try of each that has not ended."""
    results: dict[K, Found] = {}
    answers: Mapping[K, Seen | None] = dict.fromkeys(searches)
    while answers:
        tries: dict[K, Try] = {}
        for key, answer in answers.items():
            try:
                tries[key] = searches[key].send(answer)  # type: ignore[arg-type]
            except StopIteration as end:
                results[key] = end.value
        answers = look(tries) if tries else {}
    return results

"""Longest prefixes of many views at once. A probe returns the bits that hold a block; the result is lengths by bits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

Probe = Callable[[int], int]
"""Index of a block in the chain -> bits that hold it."""

Lengths = list[tuple[int, int]]
"""Pairs of a length in blocks and the bits that have it; each requested bit is in one pair."""


def lengths(probe: Probe, blocks: int, closed: int, open_: int, start: int = 0) -> Lengths:
    """Return how far each bit holds the chain without a hole, from `start` to at most `blocks`.

    A bit of `closed` is assumed to hold every block before a block that it holds. So growing steps find two probes that
    differ, and bisection between them finds the length. The chain is walked block by block for all bits of `open_`, and
    for a bit whose probes contradict the assumption.
    """
    found: Lengths = []
    if closed:
        found, broken = _halved(probe, _galloped(probe, start, blocks, closed))
        if broken:
            found = [(length, bits & ~broken) for length, bits in found]
            open_ |= broken
    if open_:
        found += _walked(probe, start, blocks, open_)
    return found


def _galloped(probe: Probe, start: int, blocks: int, want: int) -> list[tuple[int, int]]:
    """Probe at growing distances. Return (blocks, bits that hold them) pairs, from all bits at `start` to the last
    probe that matters.
    """
    seen = [(start, want)]
    step = 1
    held = start
    while held < blocks:
        held = min(start + step, blocks)
        bits = probe(held - 1) & want
        seen.append((held, bits))
        if not bits:
            break
        step *= 4
    return seen


def _halved(probe: Probe, seen: list[tuple[int, int]]) -> tuple[Lengths, int]:
    """Bisect between neighbouring probes that differ, to the block where bits end. Also return the bits with holes."""
    want = seen[0][1]
    last, last_bits = seen[-1]
    found: Lengths = [(last, last_bits)] if last_bits else []
    broken = 0
    ranges = [(*low, *high) for low, high in pairwise(seen) if low[1] != high[1]]
    while ranges:
        low, low_bits, high, high_bits = ranges.pop()
        # A bit that holds the later block and not the earlier one has a hole.
        broken |= high_bits & ~low_bits
        while high - low > 1:
            middle = (low + high) >> 1
            bits = probe(middle - 1) & want
            if bits == low_bits:
                low = middle
            elif bits == high_bits:
                high = middle
            else:
                # Some bits end before the middle and others after it, so search both halves.
                ranges.append((middle, bits, high, high_bits))
                high, high_bits = middle, bits
                broken |= bits & ~low_bits
        found.append((low, low_bits & ~high_bits))
    return found, broken


def _walked(probe: Probe, start: int, blocks: int, want: int) -> Lengths:
    found: Lengths = []
    for index in range(start, blocks):
        bits = probe(index) & want
        if bits != want:
            found.append((index, want & ~bits))
            want = bits
            if not want:
                return found
    found.append((blocks, want))
    return found


def each_bit(bits: int) -> list[int]:
    """Return the single bits of a mask, as ``1 << k``."""
    singles: list[int] = []
    if bits & (bits - 1) == 0:
        return [bits] if bits else singles
    while bits:
        low = bits & -bits
        singles.append(low)
        bits ^= low
    return singles

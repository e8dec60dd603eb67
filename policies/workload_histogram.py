"""What has been asked for of late, split by how long prefills are."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, exp2, floor, log2
from typing import NamedTuple

from policies.view import WorkerView

WINDOW_S = 120.0
"""Memory: two dozen documents where one comes every five seconds, and short enough to follow the day."""
SHORTEST_S = 2.0**-10
"""Prefills up to here are all alike."""
_PER_DOUBLING = 2
_BUCKETS = 20 * _PER_DOUBLING
_AGED_EACH_S = 0.01 * WINDOW_S
_TRACE = 1e-3
"""Requests, or parts of one, that are as good as none."""


class Part(NamedTuple):
    """Some of the requests, per second: how many, their prefills in seconds and squared, their decodes in seconds, and
    by how many seconds these and one answer beside them lengthen each other."""

    requests: float = 0.0
    prefill_s: float = 0.0
    prefill_s2: float = 0.0
    decode_s: float = 0.0
    decode_externality_s: float = 0.0

    def plus(self, other: Part) -> Part:
        """Both together."""
        return Part(*[one + two for one, two in zip(self, other, strict=True)])

    def times(self, factor: float) -> Part:
        """So many times as much."""
        return Part(*[factor * one for one in self])


class Mix(NamedTuple):
    """Requests split at a length of prefill: `long` ones took at least so long; `tied` ones did, or would have where
    the prefix that they found is missing; `free` ones would nowhere."""

    at_s: float
    long: Part
    tied: Part
    free: Part


class WorkloadHistogram:
    """Sums over the requests placed, older ones weighing less, in buckets of prefill time half a doubling wide: once
    by the prefill where it ran, once by the longest that it could have been."""

    __slots__ = ("_aged_s", "_longest", "_own")

    def __init__(self) -> None:
        self._own = [Part()] * _BUCKETS
        self._longest = [Part()] * _BUCKETS
        self._aged_s = 0.0

    def observe(self, placed: WorkerView, longest_s: float, decode_s: float, now_s: float) -> None:
        """A request was placed. `longest_s` is its prefill on the worker that holds the least of it."""
        if now_s >= self._aged_s + _AGED_EACH_S:
            self._age(now_s)
        prefill_s = placed.prefill_s
        decode_externality_s = placed.decode_externality_s / max(1, placed.running_requests)
        one = Part(1.0, prefill_s, prefill_s * prefill_s, decode_s, decode_externality_s)
        own = _bucket(prefill_s)
        longest = max(own, _bucket(longest_s))
        self._own[own] = self._own[own].plus(one)
        self._longest[longest] = self._longest[longest].plus(one)

    def splits(self, busy_workers: float) -> Iterator[Mix]:
        """At each length between the longest prefill and the shortest, where all prefills together, those of other
        processes included, keep so many workers busy: ours are taken for a sample."""
        whole = Part()
        for part in self._longest:
            whole = whole.plus(part)
        per_s = busy_workers / max(whole.prefill_s, SHORTEST_S)
        long, tied = Part(), Part()
        for bucket in range(_BUCKETS - 1, 0, -1):
            long, tied = long.plus(self._own[bucket]), tied.plus(self._longest[bucket])
            if self._own[bucket].requests > _TRACE and whole.requests - tied.requests > _TRACE:
                free = whole.plus(tied.times(-1.0))
                yield Mix(_least_s(bucket), long.times(per_s), tied.times(per_s), free.times(per_s))

    def _age(self, now_s: float) -> None:
        kept = exp((self._aged_s - now_s) / WINDOW_S)
        self._own = [part.times(kept) for part in self._own]
        self._longest = [part.times(kept) for part in self._longest]
        self._aged_s = now_s


def _bucket(seconds: float) -> int:
    if seconds < SHORTEST_S:
        return 0
    return min(_BUCKETS - 1, 1 + floor(_PER_DOUBLING * log2(seconds / SHORTEST_S)))


def _least_s(bucket: int) -> float:
    """The shortest prefill in it."""
    return SHORTEST_S * exp2((bucket - 1) / _PER_DOUBLING)

"""The recent workload, split by the length of prefills."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, exp2, floor, log2
from typing import NamedTuple

from policies.view import WorkerView

WINDOW_S = 120.0
"""The memory: long enough for two dozen documents at one every five seconds, and short enough to follow the daily
change of traffic."""
SHORTEST_S = 2.0**-10
"""All prefills up to this length count as equally long."""
_PER_DOUBLING = 2
_BUCKETS = 20 * _PER_DOUBLING
_AGED_EACH_S = 0.01 * WINDOW_S
_TRACE = 1e-3
"""A smaller weighted number of requests counts as none."""


class Part(NamedTuple):
    """A part of the workload, per second: the number of requests and sums over them.

    The sums are prefill seconds, squared prefill seconds, decode seconds, and the seconds by which the requests and
    one concurrent stream lengthen each other.
    """

    requests: float = 0.0
    prefill_s: float = 0.0
    prefill_s2: float = 0.0
    decode_s: float = 0.0
    decode_externality_s: float = 0.0

    def plus(self, other: Part) -> Part:
        return Part(*[one + two for one, two in zip(self, other, strict=True)])

    def times(self, factor: float) -> Part:
        return Part(*[factor * one for one in self])


class Mix(NamedTuple):
    """The workload split at a prefill length of `at_s`.

    `long` requests had a prefill of at least that length. `tied` requests had one, or would have had one without the
    cached prefix that they found. `free` requests would have a shorter prefill on every worker.
    """

    at_s: float
    long: Part
    tied: Part
    free: Part


class WorkloadHistogram:
    """Sums over placed requests, with less weight for older ones, in buckets of prefill time half a doubling wide.

    One set of buckets counts each request by its actual prefill time, the other by its longest one on any worker.
    """

    def __init__(self) -> None:
        self._own = [Part()] * _BUCKETS
        self._longest = [Part()] * _BUCKETS
        self._aged_s = 0.0

    def observe(self, placed: WorkerView, longest_s: float, decode_s: float, now_s: float) -> None:
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
        """Yield a split at each prefill length, longest first.

        `busy_workers` is the number of workers that all prefills together keep busy, including prefills from other
        processes. The requests of this process count as a sample of them.
        """
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
    return SHORTEST_S * exp2((bucket - 1) / _PER_DOUBLING)

"""A prefix stays known for a fixed time after it was last sent somewhere.

This is NVIDIA Dynamo's rule for workers that publish no events (``--no-router-kv-events``, ``--router-ttl-secs``). No
run here reaches Dynamo's bound of 2**20 blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.sim.virtual_time import VirtualTime
from policies.view import Residency

DYNAMO_TTL_S = 120.0
"""Dynamo's default time."""


class FixedTtl:
    """Block hashes with the time at which each is forgotten; sending a block again restarts its time."""

    __slots__ = ("_forgotten_s", "_time", "_ttl_s")

    residency = Residency.APPROXIMATE

    def __init__(self, time: VirtualTime, ttl_s: float) -> None:
        self._time = time
        self._ttl_s = ttl_s
        self._forgotten_s: dict[int, float] = {}

    def remember(self, chain: Sequence[int]) -> None:
        """Note all blocks for `ttl_s` from now, and drop expired blocks from the front, where the oldest are."""
        until_s = self._time.now_s + self._ttl_s
        times = self._forgotten_s
        for block in chain:
            times.pop(block, None)
            times[block] = until_s
        while times and times[oldest := next(iter(times))] <= self._time.now_s:
            del times[oldest]

    def known(self, chain: Sequence[int]) -> int:
        """Count the blocks up to the first one that is unknown or expired."""
        now_s, times = self._time.now_s, self._forgotten_s
        for count, block in enumerate(chain):
            if times.get(block, 0.0) <= now_s:
                return count
        return len(chain)

    def statistics(self) -> dict[str, int]:
        """Count the blocks kept."""
        return {"blocks": len(self._forgotten_s)}

"""A prefix stays known for a fixed time after it was last sent somewhere.

NVIDIA Dynamo's rule where workers publish no events (``--no-router-kv-events``, ``--router-ttl-secs``), whose bound of
2**20 blocks no run here reaches.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.sim.virtual_time import VirtualTime
from policies.view import Residency

DYNAMO_TTL_S = 120.0
"""Dynamo's default."""


class FixedTtl:
    """Block hash -> when it will be forgotten; sending it again restarts its time."""

    __slots__ = ("_forgotten_s", "_time", "_ttl_s")

    residency = Residency.APPROXIMATE

    def __init__(self, time: VirtualTime, ttl_s: float) -> None:
        self._time = time
        self._ttl_s = ttl_s
        self._forgotten_s: dict[int, float] = {}

    def remember(self, chain: Sequence[int]) -> None:
        """All of its blocks, for `ttl_s` from now; what has run out is dropped from the front, where the oldest is."""
        until_s = self._time.now_s + self._ttl_s
        times = self._forgotten_s
        for block in chain:
            times.pop(block, None)
            times[block] = until_s
        while times and times[oldest := next(iter(times))] <= self._time.now_s:
            del times[oldest]

    def known(self, chain: Sequence[int]) -> int:
        """Up to the first block that is unknown or whose time is up."""
        now_s, times = self._time.now_s, self._forgotten_s
        for count, block in enumerate(chain):
            if times.get(block, 0.0) <= now_s:
                return count
        return len(chain)

    def statistics(self) -> dict[str, int]:
        """Blocks kept."""
        return {"blocks": len(self._forgotten_s)}

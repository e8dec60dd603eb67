"""KV cache occupancy of a worker: running context, idle context, and how long a prompt waits for space.

The blocks of a running request cannot be evicted. vLLM lets a prompt wait until blocks are free, and every prompt
behind it too, first come, first served. That wait is as long as answers take: seconds, where a prefill takes tenths.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

IDLE_KEPT = 256
"""Idle contexts per worker. Each is compared with those that begin alike when it enters and when it leaves."""


class Share:
    """One request's prompt: the hashes of its blocks. The first `start` of them are counted for another request."""

    __slots__ = ("block_tokens", "hashes", "start")

    def __init__(self, hashes: Sequence[int], block_tokens: int) -> None:
        self.hashes = hashes
        self.block_tokens = block_tokens
        self.start = 0

    @property
    def tokens(self) -> int:
        """Tokens in full blocks."""
        return len(self.hashes) * self.block_tokens


class SharedContext:
    """How much of their context one worker's requests share: their union is `shared_tokens` less than their sum.

    Each block of the union is counted for exactly one request, and the blocks counted for a request are the last of
    its prompt. A new request leaves out its longest prefix that is present already. One that ends hands over the
    blocks that others still hold. Either takes a comparison or two for each request with the same first block,
    whatever its length.
    """

    __slots__ = ("_alike", "shared_tokens")

    def __init__(self) -> None:
        self.shared_tokens = 0
        self._alike: dict[int, dict[Share, None]] = {}
        """Requests by the hash of their first block, in order of arrival."""

    def add(self, share: Share) -> None:
        """Add a request."""
        if not share.hashes:
            return
        alike = self._alike.setdefault(share.hashes[0], {})
        self._count(share, _common_blocks(share.hashes, alike))
        alike[share] = None

    def remove(self, share: Share) -> None:
        """Remove a request."""
        if not share.hashes:
            return
        alike = self._alike[share.hashes[0]]
        del alike[share]
        if not alike:
            del self._alike[share.hashes[0]]
        common = _common_blocks(share.hashes, alike)
        if common > share.start:
            self._count(_heir(share.hashes, common, alike), share.start)
        self._count(share, 0)

    def common_blocks(self, hashes: Sequence[int]) -> int:
        """Return the longest prefix, in blocks, that a prompt shares with any of the requests."""
        alike = self._alike.get(hashes[0]) if hashes else None
        return _common_blocks(hashes, alike) if alike else 0

    def _count(self, share: Share, start: int) -> None:
        self.shared_tokens += (start - share.start) * share.block_tokens
        share.start = start


class IdleContext:
    """The union of the prompts that run on a worker with those of recently ended answers, each of these for a while.

    Context that running requests hold, or that several idle ones share, counts once. Answers are left out.
    """

    __slots__ = ("_entered", "_expiry", "_tokens", "_union")

    def __init__(self) -> None:
        self._union = SharedContext()
        self._tokens = 0
        self._expiry: list[tuple[float, int, Share]] = []
        self._entered = 0

    def add(self, share: Share) -> None:
        """Add a running request."""
        self._union.add(share)

    def remove(self, share: Share) -> None:
        """Remove a request that leaves no idle context."""
        self._union.remove(share)

    def rest(self, share: Share, now_s: float, until_s: float) -> None:
        """Turn an ended request's prompt into idle context until `until_s`."""
        self._expire(now_s)
        self._tokens += share.tokens
        self._entered += 1
        heappush(self._expiry, (until_s, self._entered, share))
        if len(self._expiry) > IDLE_KEPT:
            self._leave()

    def tokens(self, now_s: float, running_shared_tokens: int) -> int:
        """Return the idle tokens that no running request holds; running prompts share `running_shared_tokens`."""
        if not self._expiry:
            return 0
        self._expire(now_s)
        return self._tokens - self._union.shared_tokens + running_shared_tokens if self._expiry else 0

    def common_tokens(self, hashes: Sequence[int], block_tokens: int) -> int:
        """Return how much of a prompt is in running or idle context already."""
        return self._union.common_blocks(hashes) * block_tokens

    def _expire(self, now_s: float) -> None:
        while self._expiry and self._expiry[0][0] <= now_s:
            self._leave()

    def _leave(self) -> None:
        share = heappop(self._expiry)[2]
        self._tokens -= share.tokens
        self._union.remove(share)


def _common_blocks(hashes: Sequence[int], others: dict[Share, None]) -> int:
    """Return the longest prefix, in blocks, that a prompt shares with any of the others."""
    found, size = 0, len(hashes)
    for other in others:
        if found == size:
            return found
        theirs = other.hashes
        if len(theirs) > found and theirs[found] == hashes[found]:
            low, high = found + 1, min(size, len(theirs))
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if theirs[middle - 1] == hashes[middle - 1] else (low, middle - 1)
            found = low
    return found


def _heir(hashes: Sequence[int], common: int, others: dict[Share, None]) -> Share:
    """Return one of the others that holds the first `common` blocks and is counted for none of them."""
    return next(
        other
        for other in others
        if other.start == common and len(other.hashes) >= common and other.hashes[common - 1] == hashes[common - 1]
    )


def kv_wait_s(prompt_tokens: int, held_tokens: int, requests: int, capacity_tokens: int, remaining_s: float) -> float:
    """Return how long a prompt waits for KV space beside `requests` that hold `held_tokens` and run `remaining_s`
    longer.

    The held space becomes free evenly over that time, but not before the first request ends. Requests that wait
    themselves count too, since a later one waits behind them. But at most the capacity can run, and become free, at a
    time.
    """
    excess = held_tokens + prompt_tokens - capacity_tokens
    if excess <= 0 or held_tokens <= 0 or not capacity_tokens or not requests:
        return 0.0
    return remaining_s * max(1.0 / requests, excess / min(held_tokens, capacity_tokens))

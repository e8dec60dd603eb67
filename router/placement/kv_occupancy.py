"""KV cache occupancy of a worker: running context, idle context, and how long a prompt waits for space.

The blocks of a running request cannot be evicted. In vLLM a prompt waits until blocks are free, and all later prompts
wait behind it, first come, first served. That wait lasts until answers end: seconds, compared with tenths of a second
for a prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

IDLE_KEPT = 256
"""Idle contexts per worker. A limit is needed because each is compared, when it enters and when it leaves, with all
contexts that have the same first block."""


class Share:
    """The hashes of one prompt's blocks. The first `start` blocks are counted for other requests."""

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
    """The context that several requests of one worker share.

    The union of their contexts is `shared_tokens` smaller than the sum. Each block of the union is counted for exactly
    one request, and the blocks counted for a request are the last ones of its prompt. A new request is not counted for
    its longest prefix that is present already. When a request ends, the blocks that others still hold are counted for
    one of them. Both take a comparison or two for each request with the same first block, whatever the length.
    """

    __slots__ = ("_alike", "shared_tokens")

    def __init__(self) -> None:
        self.shared_tokens = 0
        self._alike: dict[int, dict[Share, None]] = {}
        """Requests by the hash of their first block, in order of arrival."""

    def add(self, share: Share) -> None:
        if not share.hashes:
            return
        alike = self._alike.setdefault(share.hashes[0], {})
        self._count(share, _common_blocks(share.hashes, alike))
        alike[share] = None

    def remove(self, share: Share) -> None:
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
    """The idle context of a worker: prompts of recently ended requests, each until its expiry.

    The union covers running and idle prompts, so that context which a running request holds, or several idle ones
    share, counts once. Generated tokens are left out.
    """

    __slots__ = ("_entered", "_expiry", "_tokens", "_union")

    def __init__(self) -> None:
        self._union = SharedContext()
        self._tokens = 0
        self._expiry: list[tuple[float, int, Share]] = []
        self._entered = 0

    @property
    def next_expiry_s(self) -> float:
        """The time at which the next idle context expires; infinite if there is none."""
        return self._expiry[0][0] if self._expiry else inf

    def add(self, share: Share) -> None:
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
        """Return the idle tokens that no running request holds. The running prompts share `running_shared_tokens`."""
        if not self._expiry:
            return 0
        self._expire(now_s)
        return self._tokens - self._union.shared_tokens + running_shared_tokens if self._expiry else 0

    def common_tokens(self, hashes: Sequence[int], block_tokens: int) -> int:
        """Return the length in tokens of the prompt's longest prefix in running or idle context."""
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
    """Return one of `others` that holds the first `common` blocks and is counted for none of them."""
    return next(
        other
        for other in others
        if other.start == common and len(other.hashes) >= common and other.hashes[common - 1] == hashes[common - 1]
    )


def kv_wait_s(prompt_tokens: int, held_tokens: int, requests: int, capacity_tokens: int, remaining_s: float) -> float:
    """Return the KV wait of a prompt in seconds.

    `requests` on the worker hold `held_tokens` and run `remaining_s` longer on average. The estimate frees the held
    space evenly over that time, but not before the first request ends. Requests that wait for space are included,
    since a later prompt waits behind them. But at most the capacity can be in use, and become free, at a time.
    """
    excess = held_tokens + prompt_tokens - capacity_tokens
    if excess <= 0 or held_tokens <= 0 or not capacity_tokens or not requests:
        return 0.0
    return remaining_s * max(1.0 / requests, excess / min(held_tokens, capacity_tokens))

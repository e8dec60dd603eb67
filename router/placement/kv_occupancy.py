"""Room in a worker's KV cache: what its requests hold together, what the next turns of conversations will ask for, and
how long another prompt waits for its share.

A running request's blocks cannot be evicted. vLLM lets a prompt wait until there are blocks for it, and everybody
behind it with it, first come, first served. That wait is as long as answers take: seconds, where a prefill is tenths.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

IDLE_KEPT = 256
"""Per worker: each costs a look at those that begin alike when it comes and when it goes."""


class Share:
    """One request's prompt: the hashes of its blocks, of which the first `start` are counted for another request."""

    __slots__ = ("block_tokens", "hashes", "start")

    def __init__(self, hashes: Sequence[int], block_tokens: int) -> None:
        self.hashes = hashes
        self.block_tokens = block_tokens
        self.start = 0

    @property
    def tokens(self) -> int:
        """In full blocks."""
        return len(self.hashes) * self.block_tokens


class SharedContext:
    """How much of what one worker's requests hold they hold in common: `shared_tokens` less than their sum.

    Each block of their union is counted for exactly one of them, and every request's own are the last of its prompt.
    So a new request leaves out what it has in common with any that is there, and one that ends hands on what others
    still hold. That is a comparison or two for each request that begins with the same block, no matter how long it is.
    """

    __slots__ = ("_alike", "shared_tokens")

    def __init__(self) -> None:
        self.shared_tokens = 0
        self._alike: dict[int, dict[Share, None]] = {}
        """Requests by the hash of their first block, in the order they came."""

    def add(self, share: Share) -> None:
        """A request came."""
        if not share.hashes:
            return
        alike = self._alike.setdefault(share.hashes[0], {})
        self._count(share, _common_blocks(share.hashes, alike))
        alike[share] = None

    def remove(self, share: Share) -> None:
        """It has ended."""
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
        """The longest prefix, in blocks, that a prompt has in common with any of them."""
        alike = self._alike.get(hashes[0]) if hashes else None
        return _common_blocks(hashes, alike) if alike else 0

    def _count(self, share: Share, start: int) -> None:
        self.shared_tokens += (start - share.start) * share.block_tokens
        share.start = start


class IdleContext:
    """What a worker's requests hold together with the prompts of answers that have ended there, each of these for a
    while. What a request holds of them, or several of them have in common, counts once; answers are left out.
    """

    __slots__ = ("_entered", "_expiry", "_tokens", "_union")

    def __init__(self) -> None:
        self._union = SharedContext()
        self._tokens = 0
        self._expiry: list[tuple[float, int, Share]] = []
        self._entered = 0

    def add(self, share: Share) -> None:
        """A request came."""
        self._union.add(share)

    def remove(self, share: Share) -> None:
        """It has ended, and nothing of it rests."""
        self._union.remove(share)

    def rest(self, share: Share, now_s: float, until_s: float) -> None:
        """It has ended, and its prompt rests until then."""
        self._expire(now_s)
        self._tokens += share.tokens
        self._entered += 1
        heappush(self._expiry, (until_s, self._entered, share))
        if len(self._expiry) > IDLE_KEPT:
            self._leave()

    def tokens(self, now_s: float, running_shared_tokens: int) -> int:
        """How much rests besides what requests hold, whose prompts have so many tokens in common among themselves."""
        if not self._expiry:
            return 0
        self._expire(now_s)
        return self._tokens - self._union.shared_tokens + running_shared_tokens if self._expiry else 0

    def common_tokens(self, hashes: Sequence[int], block_tokens: int) -> int:
        """How much of a prompt is held by requests or rests already."""
        return self._union.common_blocks(hashes) * block_tokens

    def _expire(self, now_s: float) -> None:
        while self._expiry and self._expiry[0][0] <= now_s:
            self._leave()

    def _leave(self) -> None:
        share = heappop(self._expiry)[2]
        self._tokens -= share.tokens
        self._union.remove(share)


def _common_blocks(hashes: Sequence[int], others: dict[Share, None]) -> int:
    """The longest prefix, in blocks, that a prompt has in common with any of the others."""
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
    """Of those with which so much is common one that counts nothing of it, but what comes next."""
    return next(
        other
        for other in others
        if other.start == common and len(other.hashes) >= common and other.hashes[common - 1] == hashes[common - 1]
    )


def kv_wait_s(prompt_tokens: int, held_tokens: int, requests: int, capacity_tokens: int, remaining_s: float) -> float:
    """How long a prompt waits for room beside `requests` that hold so much, and take `remaining_s` more on average.

    What they hold comes free evenly over that time, but not before the first of them has ended. Those that wait
    themselves are among them, since whoever comes later waits until they have had their turn; but no more than the
    capacity can run, and come free, at a time.
    """
    excess = held_tokens + prompt_tokens - capacity_tokens
    if excess <= 0 or held_tokens <= 0 or not capacity_tokens or not requests:
        return 0.0
    return remaining_s * max(1.0 / requests, excess / min(held_tokens, capacity_tokens))

"""The requests that run on each worker, and the idle context that ended requests left there.

There is one record per request, with its block hashes, tokens and stage. KV occupancy, idle context and the share of
requests with a common prefix are read from it. The blocks of a running request cannot be evicted. Several requests can
hold the same blocks, so their sum is more than the worker holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from itertools import chain
from math import inf

from router.placement.learning.speed import attention

IDLE_KEPT = 256
"""Idle contexts per worker. A limit is needed because each is compared, when it enters and when it leaves, with all
contexts that have the same first block."""


class ReservationStage(IntEnum):
    PREFILL = 0
    DECODE = 1
    RELEASED = 2


@dataclass(slots=True, eq=False, repr=False)
class LoadReservation:
    """One request's load.

    `attention` is the prompt's attention work, u * (c + u / 2) token pairs for u uncached tokens after c cached ones.
    `streams` is False if the end of the prefill is not visible, because the answer comes in one piece. `arrives` is
    True if KV cache for the prompt comes from another worker, and the prefill of the rest follows it. `hashes` are the
    prompt's full blocks of `block_tokens` each. The first `running_start` of them are counted for other running
    requests, the first `start` for other running or idle ones. `held_token_s`, `done_tokens` and `done_attention` were
    the worker's work counters when the answer began.
    """

    uncached_tokens: int
    prompt_tokens: InitVar[int]
    at_s: float
    streams: bool = True
    arrives: bool = False
    hashes: Sequence[int] = ()
    block_tokens: int = 0
    output_tokens: int = 0
    running_start: int = 0
    start: int = 0
    stage: ReservationStage = ReservationStage.PREFILL
    held_token_s: float = 0.0
    done_tokens: float = 0.0
    done_attention: float = 0.0
    context_tokens: int = field(init=False)
    attention: float = field(init=False)

    def __post_init__(self, prompt_tokens: int) -> None:
        self.context_tokens = prompt_tokens
        self.attention = attention(self.uncached_tokens, prompt_tokens - self.uncached_tokens)


class _Alike:
    """The requests whose prompts have the same first block, in order of arrival."""

    __slots__ = ("idle", "running")

    def __init__(self) -> None:
        self.running: dict[LoadReservation, None] = {}
        self.idle: dict[LoadReservation, None] = {}


class RunningRequests:
    """The running requests of one worker, and recently ended ones whose context is idle until its expiry.

    The union of running contexts is `shared_tokens` smaller than their sum. Each block of a union is counted for
    exactly one request, and the blocks counted for a request are the last ones of its prompt. A new request is not
    counted for its longest prefix that is present already. When a request ends, the blocks that others still hold are
    counted for one of them. Both take a comparison or two for each request with the same first block, whatever the
    length. Generated tokens are left out.
    """

    __slots__ = ("_alike", "_all_shared_tokens", "_entered", "_expiry", "_idle_sum_tokens", "shared_tokens")

    def __init__(self) -> None:
        self.shared_tokens = 0
        self._all_shared_tokens = 0
        """The same over running and idle contexts."""
        self._alike: dict[int, _Alike] = {}
        """By the hash of the first block."""
        self._idle_sum_tokens = 0
        self._expiry: list[tuple[float, int, LoadReservation]] = []
        self._entered = 0

    @property
    def next_expiry_s(self) -> float:
        """The time at which the next idle context expires; infinite if there is none."""
        return self._expiry[0][0] if self._expiry else inf

    def add(self, request: LoadReservation) -> None:
        hashes = request.hashes
        if not hashes:
            return
        alike = self._alike.get(hashes[0])
        if alike is None:
            self._alike[hashes[0]] = alike = _Alike()
        else:
            common = _common_blocks(hashes, alike.running)
            request.running_start, request.start = common, _common_blocks(hashes, alike.idle, common)
            self.shared_tokens += request.running_start * request.block_tokens
            self._all_shared_tokens += request.start * request.block_tokens
        alike.running[request] = None

    def end(self, request: LoadReservation, now_s: float, idle_s: float = 0.0) -> None:
        """Remove a running request. Its context stays idle for `idle_s`."""
        hashes = request.hashes
        if not hashes:
            return
        alike = self._alike[hashes[0]]
        del alike.running[request]
        common = _common_blocks(hashes, alike.running)
        if common > request.running_start:
            _running_heir(hashes, common, alike.running).running_start = request.running_start
        self.shared_tokens -= max(common, request.running_start) * request.block_tokens
        if idle_s > 0.0:
            self._rest(request, alike, now_s, idle_s)
        else:
            self._forget(request, alike, common)

    def alike(self, hashes: Sequence[int], blocks: int) -> int:
        """Return how many running requests have prompts that begin with the first `blocks` of `hashes`.

        One comparison for each request with the same first block is enough, because the hash of a block stands for all
        blocks before it. The number is 0 if `hashes` are fewer.
        """
        alike = self._alike.get(hashes[0]) if 0 < blocks <= len(hashes) else None
        if alike is None:
            return 0
        place, wanted = blocks - 1, hashes[blocks - 1]
        return sum([len(other.hashes) > place and other.hashes[place] == wanted for other in alike.running])

    def idle_tokens(self, now_s: float) -> int:
        if not self._expiry:
            return 0
        self._expire(now_s)
        return self._idle_sum_tokens - self._all_shared_tokens + self.shared_tokens if self._expiry else 0

    def common_tokens(self, hashes: Sequence[int], block_tokens: int) -> int:
        """Return the length in tokens of the prompt's longest prefix in running or idle context."""
        alike = self._alike.get(hashes[0]) if hashes else None
        if alike is None:
            return 0
        return _common_blocks(hashes, alike.idle, _common_blocks(hashes, alike.running)) * block_tokens

    def _rest(self, request: LoadReservation, alike: _Alike, now_s: float, idle_s: float) -> None:
        alike.idle[request] = None
        self._expire(now_s)
        self._idle_sum_tokens += len(request.hashes) * request.block_tokens
        self._entered += 1
        heappush(self._expiry, (now_s + idle_s, self._entered, request))
        if len(self._expiry) > IDLE_KEPT:
            self._expire_next()

    def _expire(self, now_s: float) -> None:
        while self._expiry and self._expiry[0][0] <= now_s:
            self._expire_next()

    def _expire_next(self) -> None:
        request = heappop(self._expiry)[2]
        alike = self._alike[request.hashes[0]]
        del alike.idle[request]
        self._idle_sum_tokens -= len(request.hashes) * request.block_tokens
        self._forget(request, alike, _common_blocks(request.hashes, alike.running))

    def _forget(self, request: LoadReservation, alike: _Alike, common: int) -> None:
        """Take a request that neither runs nor is idle out of the union; `common` blocks are in running contexts."""
        common = _common_blocks(request.hashes, alike.idle, common)
        if common > request.start:
            _heir(request.hashes, common, chain(alike.running, alike.idle)).start = request.start
        self._all_shared_tokens -= max(common, request.start) * request.block_tokens
        if not alike.running and not alike.idle:
            del self._alike[request.hashes[0]]


def _common_blocks(hashes: Sequence[int], others: dict[LoadReservation, None], found: int = 0) -> int:
    """Return the longest prefix, in blocks, that a prompt shares with any of the others; at least `found`."""
    size = len(hashes)
    if found == size:
        return found
    wanted = hashes[found]
    for other in others:
        theirs = other.hashes
        if len(theirs) <= found or theirs[found] != wanted:
            continue
        low, high = found + 1, min(size, len(theirs))
        if theirs[high - 1] == hashes[high - 1]:  # one continues the other, as a turn continues the one before it
            found = high
        else:
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if theirs[middle - 1] == hashes[middle - 1] else (low, middle - 1)
            found = low
        if found == size:
            return found
        wanted = hashes[found]
    return found


def _running_heir(hashes: Sequence[int], common: int, others: Iterable[LoadReservation]) -> LoadReservation:
    """Return one of `others` that holds the first `common` blocks and is counted for none of them among running ones.

    There is one, since each block is counted for exactly one request.
    """
    return next(other for other in others if other.running_start == common and _holds(other, hashes, common))


def _heir(hashes: Sequence[int], common: int, others: Iterable[LoadReservation]) -> LoadReservation:
    return next(other for other in others if other.start == common and _holds(other, hashes, common))


def _holds(other: LoadReservation, hashes: Sequence[int], common: int) -> bool:
    return len(other.hashes) >= common and other.hashes[common - 1] == hashes[common - 1]

"""Recent placements: the load of each worker over a window of time, and a model of its cache.

Prompts are cut into chunks of whole blocks. A chunk is identified by the chained hash of its last block, which stands
for the whole prefix up to that block.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from policies.view import LifecycleEvent, RequestView, WorkerId, WorkerView

CHUNK_TOKENS = 512
WORKERS_KEPT = 1_024
PLACEMENTS_KEPT = 16_384
CHUNKS_KEPT = 8_192
"""Chunks per worker whose cache size is unknown: 4 million tokens."""


class PlacedLoad(NamedTuple):
    """Load placed on a worker.

    `uncached_tokens` are all uncached prompt tokens. For `unpriced_tokens` of them, the prefill time was not known yet;
    `prefill_s` is the prefill time of the others. `decode_s` is the decode time of all.
    """

    uncached_tokens: int = 0
    unpriced_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    def plus(self, other: PlacedLoad, times: int = 1) -> PlacedLoad:
        """Return the sum, or the difference if `times` is -1."""
        return PlacedLoad(
            self.uncached_tokens + times * other.uncached_tokens,
            self.unpriced_tokens + times * other.unpriced_tokens,
            self.prefill_s + times * other.prefill_s,
            self.decode_s + times * other.decode_s,
        )


class Placement(NamedTuple):
    at_s: float
    worker: WorkerId
    load: PlacedLoad
    chunks: tuple[int, ...]


class Past:
    """One worker's part of the history. `chunks` maps chunks to their uses in the window, least recently used first."""

    __slots__ = ("chunks", "load")

    def __init__(self) -> None:
        self.chunks: OrderedDict[int, int] = OrderedDict()
        self.load = PlacedLoad()

    def add(self, placed: Placement, capacity: int) -> None:
        """Add a request. Its last chunks are used first, so that they are evicted before its first ones."""
        self.load = self.load.plus(placed.load)
        for chunk in reversed(placed.chunks):
            self.chunks[chunk] = self.chunks.get(chunk, 0) + 1
            self.chunks.move_to_end(chunk)
        while len(self.chunks) > capacity:
            self.chunks.popitem(last=False)

    def expire(self, placed: Placement) -> None:
        self.load = self.load.plus(placed.load, -1)
        for chunk in placed.chunks:
            if self.chunks.get(chunk):
                self.chunks[chunk] -= 1

    def victim_uses(self, chunks: int, capacity: int) -> int:
        """Return the uses in the window of the chunks that `chunks` new ones would evict."""
        excess = len(self.chunks) + chunks - capacity
        return sum(islice(self.chunks.values(), excess)) if excess > 0 else 0


class History:
    """All placements of the last `window_s` seconds. Only `record` changes them."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._placements: deque[Placement] = deque()
        self._pasts: OrderedDict[WorkerId, Past] = OrderedDict()
        self.count = 0
        """Requests recorded so far."""

    def record(self, event: LifecycleEvent) -> None:
        placed = Placement(event.now_s, event.worker, _load(event.request, event.placed), chunks_of(event.request))
        past = self._pasts.pop(event.worker, None) or Past()
        self._pasts[event.worker] = past
        past.add(placed, CHUNKS_KEPT if event.placed is None else chunk_capacity(event.placed))
        self._placements.append(placed)
        self.count += 1
        self._forget(event.now_s)

    def loads(self, now_s: float) -> dict[WorkerId, PlacedLoad]:
        loads = {worker: past.load for worker, past in self._pasts.items()}
        for placed in self._expired(now_s):
            if placed.worker in loads:
                loads[placed.worker] = loads[placed.worker].plus(placed.load, -1)
        return loads

    def victim_tokens(self, view: WorkerView) -> int:
        """Return the tokens that the worker would evict for the request, each weighted by its uses in the window."""
        past = self._pasts.get(view.id)
        if past is None or not view.kv_capacity_tokens:
            return 0
        return CHUNK_TOKENS * past.victim_uses(-(-view.uncached_tokens // CHUNK_TOKENS), chunk_capacity(view))

    def _expired(self, now_s: float) -> Iterator[Placement]:
        for placed in self._placements:
            if placed.at_s >= now_s - self._window_s:
                return
            yield placed

    def _forget(self, now_s: float) -> None:
        expired = max(len(list(self._expired(now_s))), len(self._placements) - PLACEMENTS_KEPT)
        for _ in range(expired):
            placed = self._placements.popleft()
            past = self._pasts.get(placed.worker)
            if past is not None:
                past.expire(placed)
        if len(self._pasts) > WORKERS_KEPT:
            self._drop(next(iter(self._pasts)))

    def _drop(self, worker: WorkerId) -> None:
        del self._pasts[worker]
        self._placements = deque(placed for placed in self._placements if placed.worker != worker)


def _load(request: RequestView, placed: WorkerView | None) -> PlacedLoad:
    """Return the load of a request, priced at its placement, because the price per token changes with the context."""
    if placed is not None and placed.learned:
        return PlacedLoad(placed.uncached_tokens, 0, placed.prefill_s, request.decode_s)
    tokens = request.prompt_tokens if placed is None else placed.uncached_tokens
    return PlacedLoad(tokens, tokens, 0.0, request.decode_s)


def chunks_of(request: RequestView) -> tuple[int, ...]:
    """Return the prompt's whole chunks, each as the hash of its last block."""
    step = max(1, CHUNK_TOKENS // max(1, request.block_tokens))
    return tuple(request.block_hashes[step - 1 :: step])


def chunk_capacity(view: WorkerView) -> int:
    return max(1, view.kv_capacity_tokens // CHUNK_TOKENS) if view.kv_capacity_tokens else CHUNKS_KEPT

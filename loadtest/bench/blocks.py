"""The stand-in's prefix cache. It publishes KV events as vLLM does, one batch per step.

Prompts stay cached. Blocks filled by streams are kept until the cache is full. They are then evicted in vLLM's order:
the least recently freed sequence first, and the last block of a sequence first. In the long run there is one removed
block for each stored one. Token ids of generated blocks are random, so no two answers are alike.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from random import Random
from typing import Any

from backends.engine.chain import BlockHasher
from backends.engine.events import BlockExtraKeys, BlocksCached, BlocksEvicted, CacheEvent
from backends.simulated.publisher import EventPublisher
from backends.simulated.settings import shipped_model_dir
from router.tokenization.local.local_tokenizer import LocalModel, ModelFiles

BLOCK_TOKENS = 16
NUM_BLOCKS = 65_536
"""A million tokens, as in the cache of an 8B model on an H200."""
STEP_S = 0.02
_BUFFER_STEPS = 10_000
_HWM = 100_000
_DRAWN = 4096
_KEPT_SEGMENTS = 65_536


@dataclass(frozen=True, slots=True)
class Chain:
    """One prompt: its length, its last full block, which is the parent of a stream's own blocks, and the ids after."""

    blocks: Blocks
    tokens: int
    parent: int | None
    tail: list[int]

    @property
    def reusable_tokens(self) -> int:
        """Number of tokens that vLLM finds cached when the prompt returns. It always computes the last token."""
        return (self.tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


class Generated:
    """The blocks that one stream has filled after a prompt."""

    def __init__(self, chain: Chain) -> None:
        self._blocks = chain.blocks
        self._parent = chain.parent
        self._tail = chain.tail
        self._hashes: list[int] = []

    def block(self) -> None:
        """Store one more full block of the stream."""
        self._parent = self._blocks.store_generated(self._parent, self._tail)
        self._tail = []
        self._hashes.append(self._parent)

    def release(self) -> None:
        """Make the stream's blocks evictable, because the stream has ended."""
        self._blocks.release(self._hashes)


@cache
def _model() -> LocalModel:
    return LocalModel(ModelFiles(shipped_model_dir()))


@lru_cache(_KEPT_SEGMENTS)
def _segment(data: bytes) -> array[int]:
    """Return the ids of one segment. They are kept, so that the next turn of a conversation costs little."""
    return _model().encode(data.decode(), framed=False)


class Blocks:
    """The cached blocks, and their KV events."""

    def __init__(self) -> None:
        self._hasher = BlockHasher(BLOCK_TOKENS, None, None)
        self._prompts: set[int] = set()
        self._generated = 0
        self._free: deque[int] = deque()
        self._events: list[CacheEvent] = []
        self._rng = Random(0)
        self._drawn = [self._rng.randrange(200, 1000) for _ in range(_DRAWN)]
        self._publisher = EventPublisher("", _BUFFER_STEPS, _HWM)
        self._endpoint, self._replay = self._publisher.start("127.0.0.1", 0, 0)
        self._loop = asyncio.get_running_loop()

    @property
    def sources(self) -> dict[str, Any]:
        """The body of ``/kv_event_sources``."""
        addresses = {"endpoint": self._endpoint, "replay_endpoint": self._replay}
        limits = {"buffer_steps": _BUFFER_STEPS, "hwm": _HWM, "max_queue_size": _HWM}
        return {"0": {"enable_kv_cache_events": True, "publisher": "zmq", **addresses, **limits, "topic": ""}}

    def prompt(self, fields: Mapping[str, Any]) -> tuple[Chain, int]:
        """Return the prompt of a body and the number of its tokens that were cached before; cache the prompt."""
        tokens, salt = self.tokens(fields), fields.get("cache_salt")
        hasher = self._hasher if salt is None else BlockHasher(BLOCK_TOKENS, None, salt)
        hashes: list[int] = []
        hasher.extend(hashes, array("I", tokens))
        known = 0
        while known < len(hashes) and hashes[known] in self._prompts:
            known += 1
        if fresh := hashes[known:]:
            self._prompts.update(fresh)
            ids = tokens[known * BLOCK_TOKENS : len(hashes) * BLOCK_TOKENS]
            self._store(fresh, hashes[known - 1] if known else None, ids, hasher.extra_keys(known, len(hashes)))
        chain = Chain(self, len(tokens), hashes[-1] if hashes else None, tokens[len(hashes) * BLOCK_TOKENS :])
        return chain, min(known * BLOCK_TOKENS, chain.reusable_tokens)

    def tokens(self, fields: Mapping[str, Any]) -> list[int]:
        """Return the token ids of a chat or completion body."""
        model = _model()
        if "messages" not in fields:
            prompt = fields["prompt"]
            return model.encode(prompt, framed=True).tolist() if isinstance(prompt, str) else prompt
        data = model.renderer.render(fields).encode()
        starts = model.segmenter.segments(data).starts
        return [id_ for start, end in pairwise([*starts, len(data)]) for id_ in _segment(data[start:end])]

    def store_generated(self, parent: int | None, tail: list[int]) -> int:
        """Store a block that a stream has filled after `parent`. Its ids begin with `tail`. Return its hash."""
        while self._free and len(self._prompts) + self._generated >= NUM_BLOCKS:
            self._generated -= 1
            self._add(BlocksEvicted((self._free.popleft(),)))
        start = self._rng.randrange(_DRAWN - BLOCK_TOKENS)
        block_hash = self._rng.getrandbits(64)
        self._generated += 1
        self._store([block_hash], parent, tail + self._drawn[start : start + BLOCK_TOKENS - len(tail)])
        return block_hash

    def release(self, hashes: Sequence[int]) -> None:
        """Make these blocks evictable, the last one first."""
        self._free.extend(reversed(hashes))

    def _store(
        self,
        hashes: Sequence[int],
        parent: int | None,
        ids: list[int],
        extra_keys: tuple[BlockExtraKeys, ...] = (None,),
    ) -> None:
        self._add(BlocksCached(tuple(hashes), parent, ids, BLOCK_TOKENS, None, extra_keys))

    def _add(self, event: CacheEvent) -> None:
        if not self._events:
            self._loop.call_later(STEP_S, self._publish)
        self._events.append(event)

    def _publish(self) -> None:
        events, self._events = self._events, []
        self._publisher.publish(events, time.time())

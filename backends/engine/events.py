"""The events of a cache as values of the engine. `backends.simulated` sends them.

They are msgspec structs instead of dataclasses because a full cache evicts a block for every block that it stores.
"""

from __future__ import annotations

import msgspec

BlockExtraKeys = tuple[str, ...] | None
"""Keys in one block's hash other than tokens and parent, untagged as on vLLM's wire: LoRA name, then cache salt."""


class BlocksCached(msgspec.Struct, frozen=True, gc=False):
    """A contiguous run of newly full blocks of one request became reusable.

    `parent` is the hash of the block before the run, None at the start of a sequence. `token_ids` has ``len(hashes) *
    block_size`` ids, or none if the request has none (`request.HashedText`); `extra_keys` runs parallel to `hashes`. A
    stored hash is announced again when a second physical copy fills, as in vLLM. It is also announced, from the
    sequence's first block on, when a request with `EngineRequest.announces_reuse` reuses it.
    """

    hashes: tuple[int, ...]
    parent: int | None
    token_ids: list[int]
    block_size: int
    lora_name: str | None
    extra_keys: tuple[BlockExtraKeys, ...]


class BlocksEvicted(msgspec.Struct, frozen=True, gc=False):
    """Physical copies of these hashes were evicted; each copy is announced separately."""

    hashes: tuple[int, ...]


class CacheCleared(msgspec.Struct, frozen=True, gc=False):
    """The prefix cache was reset."""


CacheEvent = BlocksCached | BlocksEvicted | CacheCleared

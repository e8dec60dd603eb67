"""What a worker's cache tells the world, as engine-side values. `backends.simulated` puts them on the wire.

These are msgspec structs and not dataclasses because a full cache evicts a block for every one that it stores.
"""

from __future__ import annotations

import msgspec

BlockExtraKeys = tuple[str, ...] | None
"""What besides tokens and parent goes into one block's hash, untagged as on vLLM's wire: LoRA name, then cache salt."""


class BlocksCached(msgspec.Struct, frozen=True, gc=False):
    """A contiguous run of newly full blocks of one request became hittable.

    `parent` is the hash of the block before the run, None at the start of a sequence; `token_ids` holds
    ``len(hashes) * block_size`` ids, or none where the request has none (`request.HashedText`); `extra_keys` runs
    parallel to `hashes`. A hash that is stored already is announced again when a second physical copy fills, as vLLM
    does, and when a request reuses it that asks for that (`EngineRequest.announces_reuse`): then from the sequence's
    first block on.
    """

    hashes: tuple[int, ...]
    parent: int | None
    token_ids: list[int]
    block_size: int
    lora_name: str | None
    extra_keys: tuple[BlockExtraKeys, ...]


class BlocksEvicted(msgspec.Struct, frozen=True, gc=False):
    """Physical copies of these hashes were evicted; each copy is announced by itself."""

    hashes: tuple[int, ...]


class CacheCleared(msgspec.Struct, frozen=True, gc=False):
    """The prefix cache was reset."""


CacheEvent = BlocksCached | BlocksEvicted | CacheCleared

"""What a worker's cache tells the world, as engine-side values. `backends.simulated` puts them on the wire."""

from __future__ import annotations

from dataclasses import dataclass

BlockExtraKeys = tuple[str, ...] | None
"""What besides tokens and parent goes into one block's hash, untagged as on vLLM's wire: LoRA name, then cache salt."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """A contiguous run of newly full blocks of one request became hittable.

    `parent` is the hash of the block before the run, None at the start of a sequence; `token_ids` holds
    ``len(hashes) * block_size`` ids; `extra_keys` runs parallel to `hashes`. A hash that is stored already is
    announced again when a second physical copy fills, as vLLM does, and when a request reuses it that asks for that
    (`EngineRequest.announces_reuse`): then from the sequence's first block on.
    """

    hashes: tuple[int, ...]
    parent: int | None
    token_ids: list[int]
    block_size: int
    lora_name: str | None
    extra_keys: tuple[BlockExtraKeys, ...]


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Physical copies of these hashes were evicted; each copy is announced by itself."""

    hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The prefix cache was reset."""


CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared

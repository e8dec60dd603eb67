"""Interpret the events about stored and removed blocks: tier, copies and keys."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from backends.vllm.events import BlockStored, Event
from router.residency.chain import extra_bytes, pack_tokens
from router.residency.exact.block_copies import BlockCopies, TierCopies, engine_key, engine_keys
from router.residency.exact.reported_hits import ReportedHits


def tier_of(medium: str | None, locality: str | None) -> str | None:
    """Return the name of the tier, None for the worker's own GPU. A remote store counts by its locality, not its
    medium."""
    if locality == "REMOTE":
        return "REMOTE"
    return None if medium is None or medium == "GPU" else medium


def is_new_copy(event: BlockStored) -> bool:
    """Return whether known blocks gain a copy.

    In its full report mode vLLM announces reused blocks again, from the start of the prompt. The event looks like that
    of a prompt computed without reading the cache (prompt_logprobs), unless the request passed this router
    (`ExactCache.recomputing`). A run of several blocks from the start counts as a re-announcement. With one copy too
    few, a block is forgotten one eviction early at worst, but one copy too many would stay forever. A single block
    counts as a new copy, because a prompt of exactly one block is computed again each time.
    """
    if event.origin is not None:
        return event.origin != "REUSED"
    return event.parent_block_hash is not None or len(event.block_hashes) == 1


def is_announced_again(event: BlockStored, events: Sequence[Event], position: int) -> bool:
    """Return whether the blocks after this single block, from the start of a prompt, follow in the same step.

    If so, the block was announced again. A prompt computed from its start would have announced both in one run.
    """
    if event.parent_block_hash is not None or len(event.block_hashes) != 1:
        return False
    block_hash = event.block_hashes[0]
    return any(
        isinstance(later, BlockStored) and later.parent_block_hash == block_hash for later in events[position + 1 :]
    )


def own_hashes(event: BlockStored) -> Sequence[int]:
    return [value if isinstance(value, int) else engine_key(value) for value in event.block_hashes]


def extra_keys(event: BlockStored, blocks: int) -> list[bytes] | None:
    """Return the extra key bytes per block. Publishers without `extra_keys` (vLLM < 0.19) name the adapter only."""
    if event.extra_keys is not None:
        return [extra_bytes(keys) for keys in event.extra_keys]
    if event.lora_name is not None:
        return [extra_bytes([event.lora_name])] * blocks
    if event.lora_id is not None:
        return [extra_bytes([event.lora_id])] * blocks
    return None


def packed_run(event: BlockStored, *, with_tokens: bool) -> tuple[list[int], bytes, list[bytes] | None] | None:
    """Return engine keys, packed tokens and extra keys of the blocks; None if they cannot be read.

    `with_tokens`: there must be as many tokens as the blocks have.
    """
    try:
        engines = engine_keys(event.block_hashes)
        run = engines, pack_tokens(event.token_ids), extra_keys(event, len(engines))
    except (struct.error, TypeError, ValueError, OverflowError):
        return None
    return None if with_tokens and len(event.token_ids) != len(engines) * event.block_size else run


def store_by_hash(copies: BlockCopies, reported: ReportedHits, tier_copies: TierCopies, engines: Sequence[int]) -> int:
    """Store blocks that a slower tier names by hash alone, if their engine keys are known. Return how many are skipped.

    vLLM's ``OffloadingConnector`` announces a block without token ids, parent and block size unless
    ``self_describing_kv_events`` is set. The GPU's events may have explained the hash before. A slower tier has one
    copy of each block, so a block that it holds gains none. What it holds says nothing about the GPU.
    """
    known: list[int] = []
    hashes: list[int] = []
    rows_by_tier = [tier_copies.held, *(other.held for other in copies.tiers.values() if other is not tier_copies)]
    hash_at = copies.index.hashes
    for engine in engines:
        row = next((rows[engine] for rows in rows_by_tier if engine in rows), None)
        block_hash = reported.named(engine) if row is None else hash_at[row]
        if block_hash is not None:
            known.append(engine)
            hashes.append(block_hash)
    copies.store(tier_copies, hashes, known, new_copies=False)
    skipped = len(engines) - len(known)
    tier_copies.skipped += skipped
    return skipped

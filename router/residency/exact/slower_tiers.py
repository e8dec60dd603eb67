"""Blocks in slower tiers that an event names by their hashes alone, or in another size than the GPU's.

vLLM's ``OffloadingConnector`` announces a stored block without token ids, parent and block size unless
``self_describing_kv_events`` is set. The GPU's events may have explained the hash before. The others are skipped: what
a slower tier holds says nothing about the GPU, so an event about it never makes the GPU's view approximate.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.residency.exact.block_copies import BlockCopies, TierCopies
from router.residency.exact.reported_hits import ReportedHits


def store_by_hash(copies: BlockCopies, reported: ReportedHits, tier_copies: TierCopies, engines: Sequence[int]) -> int:
    """Store the blocks whose engine keys are known; return how many were skipped.

    A slower tier has one copy of each block, so a block that it holds gains none.
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

"""The view of one worker's cache from its KV events."""

from __future__ import annotations

from collections.abc import Sequence

from backends.vllm.events import BlockRemoved, BlockStored, Event, EventBatch
from router.residency.chain import SEED, extend_chain
from router.residency.exact.block_copies import LOWER_TIER_BLOCKS, BlockCopies, TierCopies, engine_key, engine_keys
from router.residency.exact.blocks import BlockIndex
from router.residency.exact.eviction_log import EvictionLog
from router.residency.exact.orphans import OrphanBlocks, OrphanRun
from router.residency.exact.relearning import Relearning
from router.residency.exact.reported_hits import ReportedHits
from router.residency.exact.stored_events import (
    is_announced_again,
    is_new_copy,
    own_hashes,
    packed_run,
    store_by_hash,
    tier_of,
)

INDEXED_KINDS = frozenset({None, "full_attention", "mla_attention"})
"""Kinds of cache groups whose blocks form a usable prefix. Other groups keep only some of their blocks."""

FASTEST_TIER_BLOCKS = 1_048_576
"""Blocks tracked per view if the worker did not report its number of blocks."""

NULL_BLOCKS = 1
"""Blocks in vLLM's ``num_gpu_blocks`` that no request can use."""

_CAPACITY_SLACK = 2
"""Bound on the known blocks, as a factor on the worker's tokens. A worker may announce finer blocks than it allocates,
but more than twice its tokens is a leak.
"""


class ExactCache:
    """Apply decoded batches to the index. `doubts` gives the reason if the result is not exact."""

    def __init__(self, index: BlockIndex, block_size: int, capacity_blocks: int | None) -> None:
        self.block_size = block_size
        self.capacity_blocks = capacity_blocks
        self.block_copies = BlockCopies(index)
        self.eviction_log = EvictionLog()
        self.orphans = OrphanBlocks()
        self.relearning = Relearning()
        self.recomputing: dict[int, int] = {}
        """First block of each running request that reads no cache. The blocks that it computes are new copies."""
        self.reported = ReportedHits(self.block_copies)
        self.doubts: dict[str, str] = {}
        self._adopted = False
        self.accepts_hashes = False
        """Whether block hashes without token ids are in this router's own form, as from the simulator's publisher."""
        self.unknown_events = 0
        self.malformed_events = 0
        self.unknown_removals = 0
        self.skipped_blocks = 0

    def configure(self, block_size: int | None, capacity_blocks: int | None) -> None:
        """Apply facts from a probe. A block size from events takes precedence."""
        if block_size is not None and not self._adopted:
            self._resize(block_size)
        if capacity_blocks is not None:
            self.capacity_blocks = capacity_blocks * (block_size or self.block_size) // self.block_size

    @property
    def closed(self) -> bool:
        """Whether the cached blocks are closed under prefixes, as far as known: vLLM evicts from the tail."""
        return not self.doubts and not self.reported

    @property
    def has_slower_tiers(self) -> bool:
        """Whether some blocks are stored outside the GPU, or may be."""
        return any(
            medium is not None and (tier_copies.held or tier_copies.skipped)
            for (medium, _), tier_copies in self.block_copies.tiers.items()
        )

    def apply(self, batch: EventBatch) -> bool:
        """Apply one batch in order; return whether it cleared the GPU's cache."""
        self.unknown_events += batch.unknown
        self.skipped_blocks += batch.skipped_blocks
        if batch.malformed:
            self._malformed(batch.malformed)
        cleared = empty = False
        for position, event in enumerate(batch.events):
            if isinstance(event, BlockStored):
                self._stored(event, batch.events, position)
            elif isinstance(event, BlockRemoved):
                self._removed(event)
            elif not empty:  # one clear of many in a row
                self._cleared()
                cleared = empty = True
                continue
            else:
                continue
            empty = False
        self.eviction_log.bound()
        return cleared

    def _cleared(self) -> None:
        self.block_copies.clear_fastest()
        self.reported.clear()
        self.orphans.clear()
        for doubt in ("leak", "malformed"):
            self.doubts.pop(doubt, None)

    def clear(self) -> None:
        self.block_copies.clear()
        self.reported.clear()
        self.orphans.clear()
        self.doubts.clear()
        self._adopted = False

    def forget_events(self) -> None:
        """Forget the blocks known from events, after a loss. Blocks that the worker reported stay."""
        self.block_copies.clear()
        self.orphans.clear()
        self.doubts.clear()
        self.reported.carry_over()
        self._adopted = False

    def recomputes(self, ticket_id: int, block: int) -> None:
        """Record a placed request that reads no cache, by the first block of its prompt."""
        self.recomputing[ticket_id] = block

    def released(self, ticket_id: int) -> None:
        self.relearning.closed(ticket_id)
        self.recomputing.pop(ticket_id, None)

    def holds(self, block_hash: int) -> bool:
        return bool(self.block_copies.index.holders(block_hash) & self.block_copies.bit)

    def learn(self, chain: Sequence[int], hits: int, reports: int, departures: int, orphans: int) -> None:
        """Learn from a response that exactly the first `hits` blocks of `chain` were found.

        Later reports (counted by `ReportedHits.clock` after `reports`) take precedence for the rest of the chain. So do
        events about blocks departed after `departures`, because a response may arrive later than the event of an
        eviction. The blocks that the request computed next may wait among the orphans added after the first `orphans`.
        If so, they show the engine's name of the last block found.
        """
        if self.reported:
            self.reported.deny(chain[hits:], reports)
        self.reported.confirm(self._still_there(chain[:hits], departures))
        if self.orphans and 0 < hits < len(chain):
            self._recognise(chain[hits - 1], chain[hits:], orphans)
        self._bound_reported()

    def _still_there(self, found: Sequence[int], since: int) -> Sequence[int]:
        gone = self.eviction_log.departed_since(since)
        if gone is None:
            return ()
        if not gone:
            return found
        left = set(gone)
        return [one for one in found if one not in left]

    def _recognise(self, parent: int, rest: Sequence[int], since: int) -> None:
        """Find the engine's name of `parent`, from a waiting run that contains the `rest` of the prompt: the parent of
        that run has this name.

        Text repeats, so an older run may begin with the same tokens after another block, even after the next one of
        this prompt. Only runs added since the request count, and only if all of them name one block.
        """
        names = {run.parent for run in self.orphans.since(since) if run.begins(rest, parent, self.block_size)}
        if len(names) == 1:
            engine = names.pop()
            self.reported.name(engine, parent)
            self._adopt([engine], [parent])

    def _bound_reported(self) -> None:
        """Limit the reported blocks to the capacity that the announced blocks leave."""
        capacity = FASTEST_TIER_BLOCKS if self.capacity_blocks is None else self.capacity_blocks - NULL_BLOCKS
        self.reported.bound(max(0, capacity - (self.block_copies.blocks - len(self.reported))))

    def _stored(self, event: BlockStored, events: Sequence[Event], position: int) -> None:
        tier = tier_of(event.medium, event.locality)
        if event.kv_cache_spec_kind not in INDEXED_KINDS:
            partial = f"{event.kv_cache_spec_kind} cache groups, which keep only part of a prefix"
            self._doubt(tier, "hybrid", f"the model also has {partial}")
            return
        tier_copies = self.block_copies.tier_copies(tier, event.group_idx or 0)
        if tier_copies is None:
            return
        own = own_hashes(event) if self.accepts_hashes and not event.token_ids else None
        if tier is None:
            if not self._block_size_fits(event):
                return
        elif own is None and (not event.token_ids or event.block_size != self.block_size):
            self._store_below(event, tier_copies)
            return
        run = packed_run(event, with_tokens=own is None)
        if run is None:
            self._unreadable(event, tier_copies)
            return
        if event.lookahead_token_ids and any(event.lookahead_token_ids):
            why = "blocks also cover looked-ahead tokens, so the last block of a match may not count"
            self._doubt(tier, "lookahead", why)
        copies = is_new_copy(event) and not is_announced_again(event, events, position)
        engines, token_bytes, extras = run
        self._place(event, tier_copies, engines, token_bytes, extras, copies, own)

    def _doubt(self, tier: str | None, key: str, why: str) -> None:
        """Keep a reason against the GPU's view, unless the event is about a slower tier."""
        if tier is None:
            self.doubts[key] = why

    def _unreadable(self, event: BlockStored, tier_copies: TierCopies) -> None:
        if tier_copies.medium is None:
            self._malformed(1)
        else:
            self._store_below(event, tier_copies)

    def _store_below(self, event: BlockStored, tier_copies: TierCopies) -> None:
        engines = engine_keys(event.block_hashes)
        self.skipped_blocks += store_by_hash(self.block_copies, self.reported, tier_copies, engines)
        self._bound(tier_copies)

    def _place(
        self,
        event: BlockStored,
        tier_copies: TierCopies,
        engines: list[int],
        token_bytes: bytes,
        extras: list[bytes] | None,
        copies: bool,
        own: Sequence[int] | None,
    ) -> None:
        parent: int | None = SEED
        parent_engine = -1
        if event.parent_block_hash is not None:
            parent_engine = engine_key(event.parent_block_hash)
            parent = self.block_copies.hash_of(parent_engine, tier_copies)
            if parent is None:
                parent = self.reported.named(parent_engine)
        if parent is None:
            self.orphans.add(OrphanRun(parent_engine, tier_copies, engines, token_bytes, extras, copies, own))
            self.relearning.touched()
            return
        hashes = extend_chain(parent, token_bytes, self.block_size, extras) if own is None else own
        if tier_copies.medium is None and hashes:
            copies = self._follow(event, hashes, copies) or self._is_recomputed(event, hashes[0])
        fresh = (
            set() if copies or not self.orphans else {engine for engine in engines if engine not in tier_copies.held}
        )
        self.block_copies.store(tier_copies, hashes, engines, new_copies=copies)
        if tier_copies.medium is None:
            self.eviction_log.arrive(hashes)
        if self.reported and tier_copies.medium is None:
            self.reported.supersede(hashes)
        if self.orphans:
            self._adopt(engines, hashes, fresh)
        self._bound(tier_copies)

    def _is_recomputed(self, event: BlockStored, first: int) -> bool:
        """Return whether this is the start of a prompt that a request of this router computes again although it is
        cached.
        """
        if event.parent_block_hash is not None or not self.recomputing:
            return False
        ticket_id = next((ticket_id for ticket_id, block in self.recomputing.items() if block == first), None)
        if ticket_id is None:
            return False
        del self.recomputing[ticket_id]
        return True

    def _follow(self, event: BlockStored, hashes: Sequence[int], copies: bool) -> bool:
        """Record relearned blocks; return whether known blocks gain a copy."""
        relearning = self.relearning
        if event.parent_block_hash is not None:
            if relearning.active:
                relearning.computed(hashes)
            return copies
        expected = relearning.expects(hashes[0])
        if expected or relearning.active:
            relearning.announced(hashes, [one for one in hashes if not self.holds(one)])
        return copies and not expected

    def _adopt(self, engines: Sequence[int], hashes: Sequence[int], fresh: set[int] | None = None) -> None:
        """Attach the runs that waited for these blocks, then the runs that waited for the attached runs.

        `fresh` are engine keys that became known by an announcement of cached blocks. The first waiting run with such a
        key describes the same copy.
        """
        known = list(zip(engines, hashes, strict=False))
        while known:
            engine, block_hash = known.pop()
            for run in self.orphans.adopt(engine):
                below = run.hashes_after(block_hash, self.block_size)
                removed = self.orphans.take_removals(run)
                copies = list(zip(below, run.engines, strict=False))
                if fresh:
                    known_already = fresh.intersection(run.engines).difference(removed)
                    fresh.difference_update(known_already)
                    copies = [copy for copy in copies if copy[1] not in known_already]
                self.block_copies.store(
                    run.tier_copies,
                    [copy[0] for copy in copies],
                    [copy[1] for copy in copies],
                    new_copies=run.new_copies,
                )
                if run.tier_copies.medium is None:
                    self.eviction_log.arrive(below)
                if self.reported and run.tier_copies.medium is None:
                    self.reported.supersede(below)
                known.extend(zip(run.engines, below, strict=False))
                self.block_copies.remove(
                    run.tier_copies, removed, self.eviction_log.departed if run.tier_copies.medium is None else None
                )

    def _removed(self, event: BlockRemoved) -> None:
        tier_copies = self.block_copies.tiers.get((tier_of(event.medium, event.locality), event.group_idx or 0))
        if tier_copies is None:
            return
        engines = engine_keys(event.block_hashes)
        departed = self.eviction_log.departed
        before = len(departed)
        # Predictions never include slower tiers.
        missing = self.block_copies.remove(tier_copies, engines, departed if tier_copies.medium is None else None)
        if missing and tier_copies.medium is None:
            unannounced = missing
            missing = self.reported.remove(unannounced, departed)
            # A reported block may have been announced earlier, after a parent that was unknown at that time.
            if len(missing) < len(unannounced):
                self.orphans.remove(tier_copies, set(unannounced).difference(missing))
        if self.relearning.active:
            for block_hash in departed[before:]:
                self.relearning.evicted(block_hash)
        if missing:
            unknown = self.orphans.remove(tier_copies, missing)
            # Of slower tiers the unknown blocks were skipped.
            self.unknown_removals += unknown if tier_copies.medium is None else 0

    def _block_size_fits(self, event: BlockStored) -> bool:
        if event.block_size == self.block_size:
            self._adopted = True
        elif event.block_size < 1:
            self._malformed(1)
            return False
        elif self._adopted:
            self.doubts["block_size"] = f"blocks of {event.block_size} and {self.block_size} tokens are mixed"
            return False
        else:
            if self.capacity_blocks is not None:
                self.capacity_blocks = self.capacity_blocks * self.block_size // event.block_size
            self._resize(event.block_size)
            self._adopted = True
        return True

    def _resize(self, block_size: int) -> None:
        if block_size != self.block_size:
            self.reported.bound(0)
            self.block_size = block_size

    def _bound(self, tier_copies: TierCopies) -> None:
        limit = LOWER_TIER_BLOCKS
        if tier_copies.medium is None:
            limit = FASTEST_TIER_BLOCKS if self.capacity_blocks is None else self.capacity_blocks * _CAPACITY_SLACK
        over = len(tier_copies.held) - limit
        if over > 0:
            self.block_copies.discard_oldest(tier_copies, over + limit // 16)
            why = f"more blocks were announced than fit ({limit}); removals must be missing"
            self._doubt(tier_copies.medium, "leak", why)
        if self.reported and tier_copies.medium is None:
            self._bound_reported()

    def _malformed(self, count: int) -> None:
        self.malformed_events += count
        self.doubts["malformed"] = f"{self.malformed_events} events could not be read"

    def statistics(self) -> dict[str, int]:
        return {
            **self.block_copies.statistics(),
            **self.relearning.statistics(),
            "orphan_blocks": len(self.orphans),
            "orphan_bytes": self.orphans.size_bytes,
            "dropped_orphan_blocks": self.orphans.dropped_blocks,
            "unknown_removals": self.unknown_removals,
            "skipped_blocks": self.skipped_blocks,
            "reported_blocks": len(self.reported),
            "unknown_events": self.unknown_events,
            "malformed_events": self.malformed_events,
        }

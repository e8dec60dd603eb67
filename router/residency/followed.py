"""The view of a worker's cache whose KV events another process ingests.

That process writes the blocks to tables in shared memory (`shared_blocks`) and sends the log of their arrivals and
departures. So a block costs a follower next to nothing. What follows from this process's own requests is kept here: the
blocks that its responses reported, and the judgement of its predictions.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Protocol

from router.residency.block_copies import BlockCopies
from router.residency.blocks import BlockIndex
from router.residency.changes import ViewChange
from router.residency.exact import ExactView
from router.residency.shared_blocks import SharedBlocks


class ViewIngester(Protocol):
    """The connection to the process that ingests one view."""

    def configure(self, block_size: int | None, capacity_blocks: int | None) -> None:
        """Pass on facts from a probe."""

    def learn(self, chain: Sequence[int], hits: int, departures: int, orphans: int) -> None:
        """Pass on a response's report (`ExactView.learn`)."""

    def relearned(self) -> None:
        """Say that no block is missing here any more after a loss."""

    def thin(self, hashes: Sequence[int]) -> None:
        """Let one copy of each block remain, where more were assumed."""

    def asked(self, block: int) -> None:
        """Pass on a request that asks for its cached blocks, by the first block of its prompt."""

    def recomputes(self, ticket_id: int, block: int) -> None:
        """Pass on a request that reads no cache."""

    def released(self, ticket_id: int) -> None:
        """Pass on the end of a request that reads no cache."""


class FollowedIndex(BlockIndex):
    """The blocks of the shared tables, and in its own rows those that responses reported to this process."""

    __slots__ = ("blocks", "tables")

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str | None, SharedBlocks] = {}
        """Medium -> table; None is the GPU."""
        self.blocks = 0
        """Distinct blocks in the index of the process that ingests."""

    @property
    def tiered(self) -> bool:
        return len(self.tables) > 1

    def probe(self, chain: Sequence[int]) -> Callable[[int], int]:
        holders = self.holders
        return lambda position: holders(chain[position])

    def probe_below(self, chain: Sequence[int], media: Container[str]) -> Callable[[int], int]:
        tables = [table for medium, table in self.tables.items() if medium is not None and medium.upper() in media]

        def probe(position: int) -> int:
            bits = 0
            for table in tables:
                bits |= table.holders(chain[position])
            return bits

        return probe

    def holders(self, block_hash: int) -> int:
        table = self.tables.get(None)
        shared = 0 if table is None else table.holders(block_hash)
        return shared | super().holders(block_hash) if self.rows else shared

    def media(self, block_hash: int, bit: int) -> str | None:
        return next(
            (medium for medium, table in self.tables.items() if medium and table.holders(block_hash) & bit), None
        )

    def statistics(self) -> dict[str, int]:
        return {**super().statistics(), "blocks": self.blocks}


class FollowedCopies(BlockCopies):
    """The copies of reported blocks alone. The bit is the view's number in the shared tables, 0 before it is known."""

    __slots__ = ("_shared", "announced", "ingester")

    def __init__(self, index: FollowedIndex) -> None:
        super().__init__(index)
        self._shared = index
        self.bit = 0
        self.announced = 0
        """Distinct blocks that events announced on the GPU."""
        self.ingester: ViewIngester | None = None

    def thin(self, hashes: Iterable[int]) -> None:
        if self.ingester is not None:
            self.ingester.thin(list(hashes))

    def clear(self) -> None:
        self.give_up()

    def give_up(self) -> None:
        # At once, because the bit may go to another view.
        for tier_copies in self.tiers.values():
            self.remove(tier_copies, list(tier_copies.held))
        self.tiers = {}

    def announces(self, block_hash: int) -> bool:
        table = self._shared.tables.get(None)
        return table is not None and bool(table.holders(block_hash) & self.bit)

    @property
    def blocks(self) -> int:
        return self.announced + sum(len(tier_copies.held) for tier_copies in self.tiers.values())


class FollowedView(ExactView):
    """Apply changes (`follow`) in place of batches."""

    __slots__ = ("_copies", "_slower_tiers", "figures")

    def __init__(self, index: FollowedIndex, block_size: int, capacity_blocks: int | None) -> None:
        copies = self._copies = FollowedCopies(index)
        super().__init__(index, block_size, capacity_blocks, copies)
        self._slower_tiers = False
        self.figures: dict[str, int] = {}
        """Counters of the view that the other process keeps (`ingested.IngestedView.figures`)."""

    @property
    def ingester(self) -> ViewIngester | None:
        """The process that ingests; None before its first whole change."""
        return self._copies.ingester

    @ingester.setter
    def ingester(self, ingester: ViewIngester | None) -> None:
        self._copies.ingester = ingester

    @property
    def has_slower_tiers(self) -> bool:
        return self._slower_tiers

    def follow(self, change: ViewChange) -> None:
        """Take the state of the view from which `change` comes, and the entries of its log."""
        if change.whole_from is not None:
            if self._copies.bit != 1 << change.bit:
                self._rebase(1 << change.bit)
            self.eviction_log.restart(*change.whole_from)
        self._copies.announced = change.blocks
        self.orphans.waiting_blocks = change.waiting_blocks
        if change.facts is not None:
            facts = change.facts
            self._resize(facts.block_size)
            self.capacity_blocks, self._adopted = facts.capacity_blocks, facts.adopted
            self.doubts, self._slower_tiers = facts.doubts, facts.slower_tiers
        if self.relearning.active or self.relearning.listens:
            self._relearn(change)
        self.orphans.added = change.orphans
        if self.reported and (change.arrived or change.departed or change.whole_from is not None):
            self.reported.supersede(array("Q", change.arrived))
            self.reported.supersede(array("Q", change.departed))
            if change.whole_from is not None:
                self.reported.supersede([one for one in self.reported if self._copies.announces(one)])
            self._bound_reported()
        self.eviction_log.follow(change.arrived, change.departed, change.runs, change.departed_by_run)
        self.eviction_log.bound()

    def leave(self) -> None:
        """Give up the place in the tables, until the next whole change."""
        self._copies.bit = 0
        self._copies.announced = 0
        self._copies.ingester = None

    def _rebase(self, bit: int) -> None:
        self._copies.clear()
        self._copies.bit = bit
        self.reported.carry_over()

    def _relearn(self, change: ViewChange) -> None:
        """Pass the runs and departures on in the order of the events (`Relearning`)."""
        relearning, starts = self.relearning, dict(change.starts)
        arrived, departed = array("Q", change.arrived), array("Q", change.departed)
        runs, departed_by_run = array("Q", change.runs), array("Q", change.departed_by_run)
        first, gone, before = self.eviction_log.arrivals, 0, self.eviction_log.departures
        for place, start in enumerate(runs):
            end = runs[place + 1] if place + 1 < len(runs) else first + len(arrived)
            gone = self._left(departed, gone, departed_by_run[place] - before)
            run = arrived[start - first : end - first]
            if start not in starts:
                if relearning.active:
                    relearning.computed(run)
            elif relearning.active or relearning.expects(run[0]):
                relearning.announced(run, array("Q", starts[start]))
        self._left(departed, gone, len(departed))
        if change.orphans != self.orphans.added:
            relearning.touched()  # at the end, because the place among the runs is not known

    def _left(self, departed: array[int], start: int, end: int) -> int:
        if self.relearning.active:
            for block_hash in departed[start:end]:
                self.relearning.evicted(block_hash)
        return end

    def configure(self, block_size: int | None, capacity_blocks: int | None) -> None:
        super().configure(block_size, capacity_blocks)
        if self.ingester is not None:
            self.ingester.configure(block_size, capacity_blocks)

    def learn(self, chain: Sequence[int], hits: int, reports: int, departures: int, orphans: int) -> None:
        super().learn(chain, hits, reports, departures, orphans)
        if self.orphans.waiting_blocks and self.ingester is not None:
            self.ingester.learn(chain, hits, departures, orphans)

    def asks(self, ticket_id: int, now_s: float, blocks_per_s: float) -> bool:
        asks = super().asks(ticket_id, now_s, blocks_per_s)
        if asks and self.ingester is not None:
            self.ingester.asked(self.relearning.chain_of(ticket_id)[0])
        return asks

    def recomputes(self, ticket_id: int, block: int) -> None:
        super().recomputes(ticket_id, block)
        if self.ingester is not None:
            self.ingester.recomputes(ticket_id, block)

    def released(self, ticket_id: int) -> None:
        if self.ingester is not None and ticket_id in self.recomputing:
            self.ingester.released(ticket_id)
        super().released(ticket_id)

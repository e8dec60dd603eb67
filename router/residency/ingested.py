"""The view of a worker's cache in the process that ingests its KV events for others (`followed` is their side)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from router.residency.blocks import KEY_MASK, BlockIndex
from router.residency.changes import ViewChange, ViewFacts
from router.residency.event_view import EventView
from router.residency.relearning import Relearning
from router.residency.shared_blocks import Hashes, SharedBlocksWriter

_OF_FOLLOWERS = frozenset(
    ("blocks", "reports", "reported_blocks", "mismatches", "pending_differences", *Relearning().statistics())
)
"""Figures of a view that depend on requests."""

_REPORTED = -1
"""Cache group of blocks known from reports, which each process keeps for itself."""


class SharedTables:
    """The tables of all views of a process, one per medium, and the numbers of the views in them.

    `make` returns the table of a medium (None: the GPU).
    """

    def __init__(self, make: Callable[[str | None], SharedBlocksWriter]) -> None:
        self._make = make
        self._tables: dict[str | None, SharedBlocksWriter] = {None: make(None)}
        self._taken: set[int] = set()

    def take_bit(self) -> int:
        """Return the least number that no view has."""
        bit = next(number for number in range(len(self._taken) + 1) if number not in self._taken)
        self._taken.add(bit)
        return bit

    def free_bit(self, bit: int) -> None:
        """Give a number back; no block has it then."""
        self.clear(bit)
        self._taken.discard(bit)

    def clear(self, bit: int) -> None:
        """Clear view number `bit` from all blocks of all media."""
        for table in self._tables.values():
            table.clear(bit)

    def of(self, medium: str | None) -> SharedBlocksWriter:
        """Return the table of a medium, made on first use."""
        if medium not in self._tables:
            self._tables[medium] = self._make(medium)
        return self._tables[medium]


class _FollowersRelearning(Relearning):
    """Lasts until the followers say that no block is missing, because only they know their requests."""

    def computed(self, run: Sequence[int]) -> None:
        """Watch for no eviction."""


class IngestedView:
    """An `EventView`, and what its followers have not been sent yet.

    `publisher` is the view's number in messages. Call `changed` to write its blocks to the tables and to get the change
    for the followers, and `close` in the end.
    """

    def __init__(
        self, index: BlockIndex, tables: SharedTables, publisher: int, block_size: int, capacity_blocks: int | None
    ) -> None:
        self.event_view = EventView(index, block_size, capacity_blocks)
        self._tables = tables
        self._publisher = publisher
        self._bit = tables.take_bit()
        view = self.event_view.view
        view.relearning = _FollowersRelearning()
        view.starts = []
        view.block_copies.below = []
        self._sent_whole = self.event_view.whole
        self._written = False
        """Whether the view may have blocks in the tables."""
        self._sent_facts: ViewFacts | None = None
        self._arrivals = self._departures = 0

    def close(self) -> None:
        self.event_view.view.block_copies.give_up()
        self._tables.free_bit(self._bit)

    def changed(self) -> ViewChange:
        """Write the blocks that came and went to the tables; return the change since the last call that succeeded.

        Raises:
            OSError: there is no room for a table.
        """
        view, log = self.event_view.view, self.event_view.view.eviction_log
        change = self.event_view.change(self._publisher, self._bit)
        before, now = self._sent_whole, self.event_view.whole
        generation, losses, discards = now
        if (generation, losses) != before[:2] or not log.reaches(self._arrivals, self._departures):
            self._forget_changes()
            self._write_all()
            change.whole_from = log.arrivals, log.departures
            change.begins_again = generation != before[0]
            if losses != before[1] and self.event_view.loss:
                change.loss = self.event_view.loss
        else:
            self._write_changes(change)
            if discards != before[2]:
                self._write_all()
            self._forget_changes()
        self._sent_whole = now
        self._arrivals, self._departures = log.arrivals, log.departures
        facts = view.facts
        if facts != self._sent_facts or change.whole_from is not None:
            self._sent_facts = change.facts = facts
        return change

    def joined(self) -> ViewChange:
        """Return the whole state for a follower that joins after the last change."""
        change = self.event_view.change(self._publisher, self._bit)
        change.whole_from = self._arrivals, self._departures
        change.begins_again = True
        change.loss = self.event_view.loss or None
        change.facts = self.event_view.view.facts
        return change

    @property
    def figures(self) -> dict[str, int]:
        """Return the counters that do not depend on the requests of one process."""
        return {name: value for name, value in self.event_view.statistics().items() if name not in _OF_FOLLOWERS}

    # What followers pass on (`followed.ViewIngester`).

    def learn(self, chain: Sequence[int], hits: int, departures: int, orphans: int) -> None:
        """Learn the engine's names of blocks that a response found."""
        view = self.event_view.view
        view.reported.clock += 1
        view.learn(chain, hits, view.reported.clock, departures, orphans)

    def relearned(self) -> None:
        """Record that no follower misses a block any more."""
        if self.event_view.view.relearning.active:
            self.event_view.relearned()

    def _forget_changes(self) -> None:
        view = self.event_view.view
        view.starts = []
        view.block_copies.below = []

    def _write_all(self) -> None:
        copies = self.event_view.view.block_copies
        hash_of = copies.index.hashes
        held: list[tuple[SharedBlocksWriter, Hashes]] = []
        for (medium, group), tier_copies in copies.tiers.items():
            if group != _REPORTED and tier_copies.held:
                blocks = np.fromiter((hash_of[row] for row in tier_copies.held.values()), np.uint64)
                held.append((self._tables.of(medium), blocks))
        for table, _ in held:
            table.make_room(self._bit, sum(len(blocks) for one, blocks in held if one is table))
        if self._written:
            self._tables.clear(self._bit)
        self._written = bool(held)
        for table, blocks in held:
            table.change(self._bit, blocks[:0], blocks)

    def _write_changes(self, change: ViewChange) -> None:
        view, log = self.event_view.view, self.event_view.view.eviction_log
        if log.arrivals != self._arrivals or log.departures != self._departures:
            arrived, departed = log.arrived_since(self._arrivals), log.departed_since(self._departures)
            runs, departed_by_run = log.runs_since(self._arrivals)
            assert departed is not None  # `reaches` said so
            change.arrived, change.departed = arrived.tobytes(), departed.tobytes()
            change.runs, change.departed_by_run = runs.tobytes(), departed_by_run.tobytes()
            self._write(None, _packed(departed), _packed(arrived))
        if view.starts:
            change.starts = view.starts
        if below := view.block_copies.below:
            for medium in dict(below):
                touched = {block_hash for one, block_hash in below if one == medium}
                held = {block_hash for block_hash in touched if self._is_below(block_hash, medium)}
                self._write(medium, _packed_of(touched - held), _packed_of(held))

    def _write(self, medium: str | None, departed: Hashes, arrived: Hashes) -> None:
        self._written = True
        again = self._tables.of(medium).change(self._bit, departed, arrived)
        if medium is None and len(again):
            gone = [one for one in set(again.tolist()) if not self.event_view.view.holds(one)]
            self._tables.of(None).change(self._bit, _packed_of(gone), again[:0])

    def _is_below(self, block_hash: int, medium: str) -> bool:
        copies = self.event_view.view.block_copies
        row = copies.index.rows.get(block_hash & KEY_MASK)
        return row is not None and bool(copies.index.lower.get(medium, {}).get(row, 0) & copies.bit)


def _packed(hashes: array[int]) -> Hashes:
    return np.frombuffer(hashes, np.uint64)


def _packed_of(hashes: Iterable[int]) -> Hashes:
    return np.array(list(hashes), np.uint64)

"""A residency map that follows ingested views, in one process, with the interface of a map that ingests by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from policies.view import WorkerId
from router.residency.blocks import BlockIndex
from router.residency.changes import ViewChange
from router.residency.event_view import EventView
from router.residency.followed import FollowedIndex
from router.residency.ingested import IngestedView, SharedTables
from router.residency.residency_map import ResidencyMap
from router.residency.shared_blocks import SharedBlocks, SharedBlocksWriter
from router.residency.view import Ingest, IngestOutcome


class FollowedMap(ResidencyMap):
    """Each slot follows a view of its own. Events given to this map go to these views."""

    def __init__(self, approximate_bytes: int = 134_217_728, relearn_blocks_per_s: int = 1_000) -> None:
        self.followed = FollowedIndex()
        super().__init__(approximate_bytes, relearn_blocks_per_s, self.followed)
        self.ingesting = BlockIndex()
        self.tables = SharedTables(self._table)
        self.lines: dict[int, Line] = {}

    def _table(self, medium: str | None) -> SharedBlocksWriter:
        memory: list[memoryview] = []

        def allocate(size: int) -> memoryview:
            memory.append(memoryview(bytearray(size)))
            return memory[-1]

        def announce(places: int, words: int) -> None:
            self.followed.tables[medium] = SharedBlocks(memory[-1], places, words)

        return SharedBlocksWriter(allocate, announce)

    def add(self, slot: int, worker: WorkerId, block_size: int, capacity_blocks: int | None, events: bool) -> None:
        super().add(slot, worker, block_size, capacity_blocks, events)
        if events:
            self._begin(slot, block_size, capacity_blocks)

    def _begin(self, slot: int, block_size: int, capacity_blocks: int | None) -> None:
        view = IngestedView(self.ingesting, self.tables, slot, block_size, capacity_blocks)
        line = self.lines[slot] = Line(self, slot, view)
        line.send(view.joined())

    def configure(
        self,
        slot: int,
        *,
        block_size: int | None = None,
        capacity_blocks: int | None = None,
        events: bool | None = None,
    ) -> None:
        super().configure(slot, block_size=block_size, capacity_blocks=capacity_blocks, events=events)
        if events is False:
            self._end(slot)
        elif events and slot not in self.lines and slot in self._slots:
            view = self._slots[slot]
            self._begin(slot, view.block_size, view.capacity_blocks)
        elif slot in self.lines:
            self.lines[slot].flush()

    def remove(self, slot: int) -> None:
        super().remove(slot)
        self._end(slot)

    def _end(self, slot: int) -> None:
        line = self.lines.pop(slot, None)
        if line is not None:
            line.view.close()
            self.ingesting.sweep(1_000_000)

    def link_up(self, slot: int) -> Ingest:
        return self._passed(slot, lambda view: view.link_up())

    def link_lost(self, slot: int) -> None:
        if line := self.lines.get(slot):
            line.view.event_view.link_lost()
            line.flush()

    def ingest(self, slot: int, seq: int, payload: bytes, *, replayed: bool = False) -> Ingest:
        return self._passed(slot, lambda view: view.ingest(seq, payload, replayed))

    def replay_ended(self, slot: int, ok: bool) -> Ingest:
        return self._passed(slot, lambda view: view.replay_ended(ok))

    def _passed(self, slot: int, call: Callable[[EventView], Ingest]) -> Ingest:
        line = self.lines.get(slot)
        if line is None:
            return Ingest(IngestOutcome.IGNORED)
        ingest = call(line.view.event_view)
        line.flush()
        return ingest


class Line:
    """Satisfies `router.residency.followed.ViewIngester`."""

    def __init__(self, follower: FollowedMap, slot: int, view: IngestedView) -> None:
        self.follower, self.slot, self.view = follower, slot, view

    def flush(self) -> None:
        self.send(self.view.changed())

    def send(self, change: ViewChange) -> None:
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(change), type=ViewChange)
        assert self.follower.follow(self.slot, sent, self)
        self.follower.take_figures(self.slot, self.view.figures)
        self.follower.followed.blocks = len(self.follower.ingesting)

    def configure(self, block_size: int | None, capacity_blocks: int | None) -> None:
        self.view.event_view.view.configure(block_size, capacity_blocks)

    def learn(self, chain: Sequence[int], hits: int, departures: int, orphans: int) -> None:
        self.view.learn(chain, hits, departures, orphans)
        self.flush()

    def relearned(self) -> None:
        self.view.relearned()

    def thin(self, hashes: Sequence[int]) -> None:
        self.view.event_view.view.block_copies.thin(hashes)

    def asked(self, block: int) -> None:
        self.view.event_view.view.relearning.asked_elsewhere(block)

    def recomputes(self, ticket_id: int, block: int) -> None:
        self.view.event_view.view.recomputes(ticket_id, block)

    def released(self, ticket_id: int) -> None:
        self.view.event_view.view.released(ticket_id)

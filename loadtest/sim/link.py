"""The way of KV events from a worker to the gateway: a publisher that counts, and a subscription that is late."""

from __future__ import annotations

import msgspec

from backends.engine.events import BlockRemoved, CacheEvent
from backends.simulated.publisher import to_wire
from loadtest.sim.virtual_time import VirtualTime
from router.prefix.residency import ResidencyMap


class EventLink:
    """Takes each step's events to `residency`, `delay_s` late, on vLLM's wire.

    Blocks of a request in hashes go without token ids, under hashes that are the gateway's own.
    """

    def __init__(self, time: VirtualTime, residency: ResidencyMap, slot: int, delay_s: float) -> None:
        self._time = time
        self._residency = residency
        self._slot = slot
        self._delay_s = delay_s
        self._next_seq = 0
        self._encode = msgspec.msgpack.Encoder().encode
        residency.link_up(slot)
        residency.replay_ended(slot, True)
        residency.accept_hashes(slot)

    def published(self, events: list[CacheEvent]) -> None:
        """A step has ended, and changed the cache."""
        wire = [to_wire(event) for event in _together(events)]
        self._time.after(self._delay_s, self._arrived, self._next_seq, self._encode([self._time.now_s, wire, 0]))
        self._next_seq += 1

    def _arrived(self, seq: int, payload: bytes) -> None:
        self._residency.ingest(self._slot, seq, payload)

    def statistics(self) -> dict[str, int]:
        """Batches published."""
        return {"published_batches": self._next_seq}


def _together(events: list[CacheEvent]) -> list[CacheEvent]:
    """Removals that follow each other as one: vLLM tells of each block by itself, to the same effect."""
    joined: list[CacheEvent] = []
    removed: list[int] = []
    for event in events:
        if isinstance(event, BlockRemoved):
            removed += event.hashes
            continue
        if removed:
            joined.append(BlockRemoved(tuple(removed)))
            removed = []
        joined.append(event)
    if removed:
        joined.append(BlockRemoved(tuple(removed)))
    return joined

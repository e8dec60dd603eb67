"""The path of KV events from a worker to the gateway: a publisher with sequence numbers, and a delayed subscription."""

from __future__ import annotations

import msgspec

from backends.engine.events import BlocksEvicted, CacheEvent
from backends.simulated.publisher import to_wire
from loadtest.sim.virtual_time import VirtualTime
from router.residency.residency_map import ResidencyMap


class EventLink:
    """Delivers each step's events to `residency` after `delay_s`, in vLLM's wire format.

    Blocks of a hashed request go without token ids, under the gateway's own hashes.
    """

    def __init__(self, time: VirtualTime, residency: ResidencyMap, slot: int, delay_s: float) -> None:
        self._time = time
        self._residency = residency
        self._slot = slot
        self._delay_s = delay_s
        self._next_seq = 0
        self._encode = msgspec.msgpack.Encoder().encode
        residency.slot(slot).link_up()
        residency.slot(slot).replay_ended(True)
        residency.slot(slot).accept_hashes()

    def published(self, events: list[CacheEvent]) -> None:
        """Publish the events of a step that has ended."""
        wire = [to_wire(event, "GPU") for event in _together(events)]
        seq, payload = self._next_seq, self._encode([self._time.now_s, wire, 0])
        self._next_seq += 1
        self._time.after(self._delay_s, self._arrived, seq, payload)

    def _arrived(self, seq: int, payload: bytes) -> None:
        self._residency.slot(self._slot).ingest(seq, payload)


def _together(events: list[CacheEvent]) -> list[CacheEvent]:
    """Merge consecutive removals into one event. vLLM sends one event per block, to the same effect."""
    joined: list[CacheEvent] = []
    removed: list[int] = []
    for event in events:
        if isinstance(event, BlocksEvicted):
            removed += event.hashes
            continue
        if removed:
            joined.append(BlocksEvicted(tuple(removed)))
            removed = []
        joined.append(event)
    if removed:
        joined.append(BlocksEvicted(tuple(removed)))
    return joined

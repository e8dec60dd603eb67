"""The path of KV events from a worker to the gateway: a publisher with sequence numbers, and a delayed subscription."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from backends.engine.events import BlocksEvicted, CacheEvent
from backends.simulated.publisher import to_wire
from loadtest.sim.virtual_time import VirtualTime
from router.residency.residency_map import ResidencyMap
from router.residency.view import Ingest

REPLAYED_BATCHES = 10_000
"""Batches that a publisher keeps for replay (vLLM's ``buffer_steps``)."""


class EventLink:
    """Delivers each step's events to `residency` after `delay_s`, in vLLM's wire format.

    Blocks of a hashed request go without token ids, under the gateway's own hashes. A batch is lost if `lost` returns
    true. With `replays`, lost batches are replayed a round trip of delays after the sequence gap shows. Without it,
    the gateway learns at once that no replay will come.
    """

    def __init__(
        self,
        time: VirtualTime,
        residency: ResidencyMap,
        slot: int,
        delay_s: float,
        *,
        lost: Callable[[], bool] | None = None,
        replays: bool = True,
    ) -> None:
        self._time = time
        self._residency = residency
        self._slot = slot
        self._delay_s = delay_s
        self._next_seq = 0
        self._lost = lost
        self._replays = replays
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=0 if lost is None else REPLAYED_BATCHES)
        self._encode = msgspec.msgpack.Encoder().encode
        residency.slot(slot).link_up()
        residency.slot(slot).replay_ended(True)
        residency.slot(slot).accept_hashes()

    def published(self, events: list[CacheEvent]) -> None:
        """Publish the events of a step that has ended."""
        wire = [to_wire(event, "GPU") for event in _together(events)]
        seq, payload = self._next_seq, self._encode([self._time.now_s, wire, 0])
        self._next_seq += 1
        self._kept.append((seq, payload))
        if self._lost is None or not self._lost():
            self._time.after(self._delay_s, self._arrived, seq, payload)

    def _arrived(self, seq: int, payload: bytes) -> None:
        self._answer(self._residency.slot(self._slot).ingest(seq, payload))

    def _answer(self, ingest: Ingest) -> None:
        if ingest.replay_from is None:
            return
        if self._replays:
            self._time.after(self._delay_s, self._replay, ingest.replay_from)
        else:
            self._residency.slot(self._slot).replay_ended(False)

    def _replay(self, start: int) -> None:
        self._time.after(self._delay_s, self._replayed, [batch for batch in self._kept if batch[0] >= start])

    def _replayed(self, batches: list[tuple[int, bytes]]) -> None:
        for seq, payload in batches:
            self._residency.slot(self._slot).ingest(seq, payload, replayed=True)
        self._answer(self._residency.slot(self._slot).replay_ended(True))


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

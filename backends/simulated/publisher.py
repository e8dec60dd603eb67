"""KV events of the simulated engine, as vLLM >= 0.26 sends them.

The payload of a batch is msgpack ``[ts, events, rank]`` with events as maps tagged ``type``. One batch per engine step
that had events, numbered from 0. `backends.vllm.event_publisher` has the sockets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from backends.engine import events as engine_events
from backends.vllm.event_publisher import EventBuffer, EventSockets

_GPU = "GPU"
_HOST = "CPU"


class _Event(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    pass


class StoredMessage(_Event, frozen=True, tag_field="type", tag="BlockStored"):
    """vLLM's ``BlockStored``; the fields without default are always on the wire, even as nil."""

    block_hashes: tuple[int, ...]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: tuple[tuple[str, ...] | None, ...] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class RemovedMessage(_Event, frozen=True, tag_field="type", tag="BlockRemoved"):
    """vLLM's ``BlockRemoved``: one entry per evicted physical copy."""

    block_hashes: tuple[int, ...]
    medium: str | None
    group_idx: int | None = None


class ClearedMessage(_Event, frozen=True, tag_field="type", tag="AllBlocksCleared"):
    """vLLM's ``AllBlocksCleared``: the prefix cache was reset."""


WireEvent = StoredMessage | RemovedMessage | ClearedMessage


class _Batch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    ts: float
    events: list[WireEvent]
    data_parallel_rank: int


def to_wire(event: engine_events.CacheEvent, medium: str = _GPU) -> WireEvent:
    """Return one event of the cache in `medium`, as vLLM writes it for a model with one full-attention cache group."""
    if isinstance(event, engine_events.BlocksCached):
        tagged = any(keys is not None for keys in event.extra_keys)
        return StoredMessage(
            block_hashes=event.hashes,
            parent_block_hash=event.parent,
            token_ids=event.token_ids,
            block_size=event.block_size,
            lora_id=None,
            medium=medium,
            lora_name=event.lora_name,
            extra_keys=event.extra_keys if tagged else None,
            group_idx=0,
            kv_cache_spec_kind="full_attention",
        )
    if isinstance(event, engine_events.BlocksEvicted):
        return RemovedMessage(block_hashes=event.hashes, medium=medium, group_idx=0)
    return ClearedMessage()


class EventPublisher:
    """PUB and replay socket of one engine, on the running event loop; never blocks it for long.

    Slow subscribers lose batches beyond `hwm`, as with vLLM.
    """

    def __init__(self, topic: str, buffer_steps: int, hwm: int) -> None:
        self._buffer = EventBuffer(max_batches=buffer_steps)
        self._sockets = EventSockets(topic, self._buffer, hwm)
        self._encoder = msgspec.msgpack.Encoder()
        self._next_seq = 0

    def start(self, host: str, port: int, replay_port: int) -> tuple[str, str]:
        """Bind both sockets and answer replays from now on; return the two bound endpoints."""
        return self._sockets.open(host, port, replay_port)

    def close(self) -> None:
        self._sockets.close()

    def publish(
        self,
        events: Iterable[engine_events.CacheEvent],
        ts: float,
        below: Iterable[engine_events.CacheEvent] = (),
    ) -> None:
        """Send one step's events as one batch, with those `below` of host memory; nothing if there are none."""
        wire = [*(to_wire(event) for event in events), *(to_wire(event, _HOST) for event in below)]
        if not wire:
            return
        seq, payload = self._next_seq, self._encoder.encode(_Batch(ts, wire, 0))
        self._next_seq += 1
        self._buffer.append(seq, payload)
        self._sockets.publish(seq, payload)

    def statistics(self) -> dict[str, Any]:
        return {
            "published_batches": self._next_seq,
            "buffered_batches": len(self._buffer),
            **self._sockets.statistics(),
        }

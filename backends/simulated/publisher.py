"""KV events on ZMQ, as vLLM >= 0.26 sends them.

PUB frames: topic, sequence number (8 bytes, big endian, from 0), msgpack ``[ts, events, rank]`` with events as maps
tagged ``type``. A ROUTER answers ``["", start]`` with every buffered batch from `start` on as ``["", topic, seq,
payload]`` and then ``["", "", -1, ""]``. One batch per engine step that had events.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec
import zmq

from backends.engine import events as engine_events

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_REPLAYED_PER_SLICE = 256
_MEDIUM = "GPU"


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


def to_wire(event: engine_events.CacheEvent) -> WireEvent:
    """Return one engine event as vLLM writes it for a model with one full-attention cache group."""
    if isinstance(event, engine_events.BlocksCached):
        tagged = any(keys is not None for keys in event.extra_keys)
        return StoredMessage(
            block_hashes=event.hashes,
            parent_block_hash=event.parent,
            token_ids=event.token_ids,
            block_size=event.block_size,
            lora_id=None,
            medium=_MEDIUM,
            lora_name=event.lora_name,
            extra_keys=event.extra_keys if tagged else None,
            group_idx=0,
            kv_cache_spec_kind="full_attention",
        )
    if isinstance(event, engine_events.BlocksEvicted):
        return RemovedMessage(block_hashes=event.hashes, medium=_MEDIUM, group_idx=0)
    return ClearedMessage()


class EventPublisher:
    """PUB and replay socket of one engine, on the running event loop; never blocks it for long.

    Slow subscribers lose batches beyond `hwm`, as with vLLM; replies to a replay request are never dropped. `dropped`
    sequence numbers can be withheld from PUB (but kept for replay) to rehearse a lossy link.
    """

    def __init__(self, topic: str, buffer_steps: int, hwm: int) -> None:
        self._topic = topic.encode()
        self._hwm = hwm
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=buffer_steps)
        self._encoder = msgspec.msgpack.Encoder()
        self._next_seq = 0
        self._to_drop = 0
        self._dropped = 0
        self._replays = 0
        self._replayed_batches = 0
        self._replies: set[asyncio.Task[None]] = set()

    def start(self, host: str, port: int, replay_port: int) -> tuple[str, str]:
        """Bind both sockets and answer replays from now on; return the two bound endpoints."""
        self._context = zmq.Context(io_threads=1)
        self._publish_socket = self._socket(zmq.PUB, self._hwm, ipv6=":" in host)
        self._replay_socket = self._socket(zmq.ROUTER, 0, ipv6=":" in host)
        try:
            endpoints = tuple(
                self._bind(socket, host, number)
                for socket, number in ((self._publish_socket, port), (self._replay_socket, replay_port))
            )
        except OSError:
            self._context.destroy(linger=0)
            raise
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._replay_socket.FD, self._on_replay_request)
        return endpoints[0], endpoints[1]

    def _socket(self, kind: int, hwm: int, *, ipv6: bool) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(hwm)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, int(ipv6))
        return socket

    @staticmethod
    def _bind(socket: zmq.Socket[bytes], host: str, port: int) -> str:
        address = f"[{host}]" if ":" in host else host
        try:
            socket.bind(f"tcp://{address}:{port}")
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"KV events cannot listen on {address}:{port}: {error.strerror}") from None
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)

    async def aclose(self) -> None:
        """Close both sockets."""
        self._loop.remove_reader(self._replay_socket.FD)
        for reply in list(self._replies):
            reply.cancel()
        await asyncio.gather(*self._replies, return_exceptions=True)
        self._context.destroy(linger=0)

    def publish(self, events: Iterable[engine_events.CacheEvent], ts: float) -> None:
        """Send one step's events as one batch; nothing if there are none."""
        wire = [to_wire(event) for event in events]
        if not wire:
            return
        seq = self._next_seq.to_bytes(8, "big")
        payload = self._encoder.encode(_Batch(ts, wire, 0))
        self._next_seq += 1
        self._buffer.append((seq, payload))
        if self._to_drop:
            self._to_drop -= 1
            self._dropped += 1
            return
        self._publish_socket.send_multipart((self._topic, seq, payload), zmq.DONTWAIT)

    def drop_next(self, batches: int) -> None:
        """Withhold the next `batches` from subscribers, as a lossy link would; replay still has them."""
        self._to_drop = batches

    def _on_replay_request(self) -> None:
        # The descriptor of a ZMQ socket is edge-triggered, so read until no message is left.
        while True:
            try:
                frames = self._replay_socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            if len(frames) == 3 and frames[1] == b"" and len(frames[2]) == 8:
                reply = self._loop.create_task(self._replay(frames[0], frames[2]))
                self._replies.add(reply)
                reply.add_done_callback(self._replies.discard)

    async def _replay(self, client: bytes, start: bytes) -> None:
        self._replays += 1
        batches = [(seq, payload) for seq, payload in self._buffer if seq >= start]
        for sent, (seq, payload) in enumerate(batches, 1):
            self._replay_socket.send_multipart((client, b"", self._topic, seq, payload))
            if sent % _REPLAYED_PER_SLICE == 0:
                await asyncio.sleep(0)
        self._replayed_batches += len(batches)
        self._replay_socket.send_multipart((client, b"", b"", END_OF_REPLAY, b""))
        # Sending may have consumed the descriptor's edge for a request that arrived in the meantime.
        self._on_replay_request()

    def statistics(self) -> dict[str, Any]:
        """Return the batches published, kept for replay and withheld, and the replay requests answered."""
        return {
            "published_batches": self._next_seq - self._dropped,
            "buffered_batches": len(self._buffer),
            "dropped_batches": self._dropped,
            "replays": self._replays,
            "replayed_batches": self._replayed_batches,
        }

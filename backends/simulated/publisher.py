"""KV events of the simulated engine, as vLLM >= 0.26 sends them.

The payload of a batch is msgpack ``[ts, events, rank]`` with events as maps tagged ``type``. One batch per engine step
that had events, numbered from 0.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

import msgspec
import zmq

from backends.engine import events as engine_events
from backends.vllm.events import END_SEQ, SEQ_BYTES

_GPU = "GPU"
_HOST = "CPU"
_REPLAYED_PER_SLICE = 256


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

    Slow subscribers lose batches beyond `hwm`, as with vLLM. PUB frames are topic, sequence number (8 bytes, big
    endian) and payload. A ROUTER answers ``["", start]`` with every kept batch from `start` on as ``["", topic, seq,
    payload]`` and then ``["", "", -1, ""]``.
    """

    def __init__(self, topic: str, buffer_steps: int, hwm: int) -> None:
        self._topic = topic.encode()
        self._hwm = hwm
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=max(1, buffer_steps))
        self._encoder = msgspec.msgpack.Encoder()
        self._next_seq = 0
        self._replays: set[asyncio.Task[None]] = set()
        self._replayed = 0

    def start(self, host: str, port: int, replay_port: int) -> tuple[str, str]:
        """Bind both sockets and answer replays from now on; return the two bound endpoints. `host` may be ``*``.

        Raises:
            OSError: an address cannot be bound.
        """
        self._context = zmq.Context(io_threads=1)
        self._publish_socket = self._socket(zmq.PUB, self._hwm, ipv6=":" in host)
        self._replay_socket = self._socket(zmq.ROUTER, 0, ipv6=":" in host)  # 0: a replay is as long as what is kept
        try:
            endpoints = _bind(self._publish_socket, host, port), _bind(self._replay_socket, host, replay_port)
        except OSError:
            self._context.destroy(linger=0)
            raise
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._replay_socket.FD, self._on_replay_request)
        return endpoints

    def _socket(self, kind: int, hwm: int, *, ipv6: bool) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(hwm)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, int(ipv6))
        return socket

    def close(self) -> None:
        self._loop.remove_reader(self._replay_socket.FD)
        for replay in self._replays:
            replay.cancel()
        self._context.destroy(linger=0)

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
        batch = self._next_seq.to_bytes(SEQ_BYTES, "big"), self._encoder.encode(_Batch(ts, wire, 0))
        self._next_seq += 1
        self._kept.append(batch)
        self._publish_socket.send_multipart((self._topic, *batch), zmq.DONTWAIT)

    def _on_replay_request(self) -> None:
        # The descriptor of a ZMQ socket is edge-triggered, so read until no message is left.
        while not self._replay_socket.closed:
            try:
                frames = self._replay_socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            if len(frames) == 3 and frames[1] == b"" and len(frames[2]) == SEQ_BYTES:
                replay = self._loop.create_task(self._replay(frames[0], frames[2]))
                self._replays.add(replay)
                replay.add_done_callback(self._replays.discard)

    async def _replay(self, client: bytes, start: bytes) -> None:
        self._replayed += 1
        for number, batch in enumerate([one for one in self._kept if one[0] >= start], 1):
            self._replay_socket.send_multipart((client, b"", self._topic, *batch), zmq.DONTWAIT)
            if number % _REPLAYED_PER_SLICE == 0:
                await asyncio.sleep(0)
        self._replay_socket.send_multipart((client, b"", b"", END_SEQ, b""), zmq.DONTWAIT)
        # Sending may have consumed the descriptor's edge for a request that arrived in the meantime.
        self._on_replay_request()

    def statistics(self) -> dict[str, int]:
        return {
            "published_batches": self._next_seq,
            "buffered_batches": len(self._kept),
            "replays": self._replayed,
        }


def _bind(socket: zmq.Socket[bytes], host: str, port: int) -> str:
    address = f"[{host}]" if ":" in host else host
    try:
        socket.bind(f"tcp://{address}:{port}")
    except zmq.ZMQError as error:
        raise OSError(error.errno, f"KV events cannot listen on {address}:{port}: {error.strerror}") from None
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)

"""The publisher's side of KV events on ZMQ, as vLLM >= 0.26 sends them, and the batches kept for a replay.

PUB frames: topic, sequence number (8 bytes, big endian), payload. A ROUTER answers ``["", start]`` with every kept
batch from `start` on as ``["", topic, seq, payload]`` and then ``["", "", -1, ""]``.
"""

from __future__ import annotations

import asyncio
import errno
import sys
from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import zmq

from backends.vllm.events import END_SEQ, SEQ_BYTES

_REPLAYED_PER_SLICE = 256
MOST_REPLAYS = 64
"""Replays at once; a further request gets no answer, and its sender asks again."""
REPLAY_HWM = 1_000
"""Batches of one replay in ZMQ's queue."""
_MOST_REQUEST_BYTES = 1_024
_RETRY_S = 0.002
STALLED_S = 30.0
"""A replay ends if its receiver takes nothing for this time."""

Batch = tuple[int, bytes]
"""Sequence number and payload."""
_DROPPED: Batch = (-1, b"")
_number = itemgetter(0)


class EventBuffer:
    def __init__(self, max_batches: int = sys.maxsize) -> None:
        self._max_batches = max_batches
        self._batches: list[Batch] = []
        self._first = 0

    def __len__(self) -> int:
        return len(self._batches) - self._first

    def append(self, seq: int, payload: bytes) -> None:
        """Keep a batch. Its number must be larger than those before it."""
        self._batches.append((seq, payload))
        while len(self) > max(1, self._max_batches):
            self._batches[self._first] = _DROPPED
            self._first += 1
        if self._first > len(self._batches) // 2:
            del self._batches[: self._first]
            self._first = 0

    def since(self, seq: int, most: int) -> Sequence[Batch]:
        begin = bisect_left(self._batches, seq, lo=self._first, key=_number)
        return self._batches[begin : begin + most]


class EventSockets:
    """PUB and replay socket of one publisher, on the running event loop.

    A subscriber that is slow loses batches beyond `hwm`, as with vLLM. A replay waits for its receiver.
    """

    def __init__(self, topic: str, buffer: EventBuffer, hwm: int) -> None:
        self._topic = topic.encode()
        self._buffer = buffer
        self._hwm = hwm
        self._replays = 0
        self._replayed_batches = 0
        self._replies: dict[bytes, asyncio.Task[None]] = {}

    def open(self, host: str, port: int, replay_port: int) -> tuple[str, str]:
        """Bind both sockets and answer replays from now on; return the two bound endpoints. `host` may be ``*``.

        Raises:
            OSError: an address cannot be bound.
        """
        self._context = zmq.Context(io_threads=1)
        self._publish_socket = self._socket(zmq.PUB, self._hwm, ipv6=":" in host)
        self._replay_socket = self._socket(zmq.ROUTER, REPLAY_HWM, ipv6=":" in host)
        self._replay_socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a full queue and a lost peer are errors
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
        socket.setsockopt(zmq.MAXMSGSIZE, _MOST_REQUEST_BYTES)
        return socket

    @staticmethod
    def _bind(socket: zmq.Socket[bytes], host: str, port: int) -> str:
        address = f"[{host}]" if ":" in host else host
        try:
            socket.bind(f"tcp://{address}:{port}")
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"KV events cannot listen on {address}:{port}: {error.strerror}") from None
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def close(self) -> None:
        self._loop.remove_reader(self._replay_socket.FD)
        for reply in self._replies.values():
            reply.cancel()
        self._context.destroy(linger=0)

    def publish(self, seq: int, payload: bytes) -> None:
        self._publish_socket.send_multipart((self._topic, seq.to_bytes(SEQ_BYTES, "big"), payload), zmq.DONTWAIT)

    def _on_replay_request(self) -> None:
        # The descriptor of a ZMQ socket is edge-triggered, so read until no message is left.
        while not self._replay_socket.closed:
            try:
                frames = self._replay_socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            if len(frames) == 3 and frames[1] == b"" and len(frames[2]) == SEQ_BYTES:
                self._begin_replay(frames[0], int.from_bytes(frames[2], "big"))

    def _begin_replay(self, client: bytes, start: int) -> None:
        """Answer a request; a further one of the same client replaces it."""
        running = self._replies.pop(client, None)
        if running is not None:
            running.cancel()
        if len(self._replies) < MOST_REPLAYS:
            reply = self._replies[client] = self._loop.create_task(self._replay(client, start))
            reply.add_done_callback(lambda ended: self._replay_ended(client, ended))

    def _replay_ended(self, client: bytes, ended: asyncio.Task[None]) -> None:
        if self._replies.get(client) is ended:
            del self._replies[client]

    async def _replay(self, client: bytes, start: int) -> None:
        self._replays += 1
        try:
            while batches := self._buffer.since(start, _REPLAYED_PER_SLICE):
                for seq, payload in batches:
                    await self._reply((client, b"", self._topic, seq.to_bytes(SEQ_BYTES, "big"), payload))
                self._replayed_batches += len(batches)
                start = batches[-1][0] + 1
                await asyncio.sleep(0)
            await self._reply((client, b"", b"", END_SEQ, b""))
        except zmq.ZMQError as error:
            if error.errno not in (errno.EHOSTUNREACH, errno.EAGAIN):  # not: the client left, or takes nothing
                raise
        # Sending may have consumed the descriptor's edge for a request that arrived in the meantime.
        self._on_replay_request()

    async def _reply(self, frames: Sequence[bytes]) -> None:
        end_s = self._loop.time() + STALLED_S
        while True:
            try:
                self._replay_socket.send_multipart(frames, zmq.DONTWAIT)
            except zmq.Again:
                if self._loop.time() >= end_s:
                    raise
                await asyncio.sleep(_RETRY_S)
            else:
                return

    def statistics(self) -> dict[str, Any]:
        return {"replays": self._replays, "replayed_batches": self._replayed_batches}

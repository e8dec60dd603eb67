"""Listen to a worker's KV events while it is tried, and tell whether it names offloaded blocks by hashes alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import zmq

from backends.vllm.events import BlockStored, WireError, decode_batch, split_frames
from backends.worker import KvEventSource
from router.residency.exact.stored_events import tier_of
from router.workers.event_sockets import MAX_MESSAGE_BYTES

SELF_DESCRIBING_FLAG = '"self_describing_kv_events":true in kv_connector_extra_config of --kv-transfer-config'
BY_HASH = "its OffloadingConnector names offloaded blocks by hashes alone; those unknown from the GPU are then skipped"
LINGER_S = 0.3
"""How long to listen after the last request. vLLM announces offloaded blocks in a later step."""
_POLL_S = 0.02
_MOST_MESSAGES = 1_000


@contextmanager
def listening(sources: Sequence[KvEventSource]) -> Iterator[list[zmq.Socket[bytes]]]:
    """Subscribe to `sources`; an address that ZMQ refuses is left out."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets: list[zmq.Socket[bytes]] = []
    try:
        for source in sources:
            sockets.append(socket := context.socket(zmq.SUB))
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.setsockopt(zmq.RCVHWM, _MOST_MESSAGES)
            socket.setsockopt(zmq.SUBSCRIBE, source.topic.encode())
            try:
                socket.connect(source.endpoint)
            except zmq.ZMQError:
                continue
        yield sockets
    finally:
        for socket in sockets:
            socket.close()
        context.term()


async def names_by_hash(sockets: Sequence[zmq.Socket[bytes]], linger_s: float = LINGER_S) -> bool:
    """Return whether an event about a slower tier has come without token ids, or comes within `linger_s`."""
    until_s = asyncio.get_running_loop().time() + linger_s
    left = _MOST_MESSAGES
    while left and sockets:
        for socket in sockets:
            try:
                frames = socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                continue
            left -= 1
            if _by_hash(frames):
                return True
            break
        else:
            if asyncio.get_running_loop().time() > until_s:
                return False
            await asyncio.sleep(_POLL_S)
    return False


def _by_hash(frames: Sequence[bytes]) -> bool:
    try:
        events = decode_batch(split_frames(frames)[1]).events
    except WireError:
        return False
    stored = [event for event in events if isinstance(event, BlockStored) and not event.token_ids]
    return any(tier_of(event.medium, event.locality) is not None for event in stored)

"""KV events of a vLLM worker, translated to the engine model's hashes."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import xxhash
import zmq
import zmq.asyncio

from backends.engine.chain import SEED
from backends.vllm.events import AllBlocksCleared, BlockRemoved, BlockStored, decode_batch, split_frames
from backends.worker import KvEventSource
from loadtest.fidelity.outcome import BlockHistory

SETTLE_S = 0.3
"""An idle worker's events count as complete after it has sent none for this time."""


class EventLog:
    """All batches of one publisher, each with its own time."""

    def __init__(self) -> None:
        self._payloads: list[bytes] = []
        self._next_seq: int | None = None
        self._lost = 0

    def add(self, frames: list[bytes]) -> None:
        seq, payload = split_frames(frames)
        if self._next_seq is not None:
            self._lost += seq - self._next_seq
        self._next_seq = seq + 1
        self._payloads.append(payload)

    @property
    def messages(self) -> int:
        return len(self._payloads)

    @property
    def lost(self) -> int:
        """Number of messages that did not arrive."""
        return self._lost

    def history(self, begin_s: float, time_scale: float) -> BlockHistory:
        """Return when blocks came and went, in modelled seconds since `begin_s` (wall clock).

        Events before the last reset of the cache are left out.
        """
        history = BlockHistory()
        local: dict[int | bytes, int] = {}
        for payload in self._payloads:
            batch = decode_batch(payload)
            at_s = (batch.ts - begin_s) / time_scale
            for event in batch.events:
                if isinstance(event, BlockStored):
                    for block_hash in _hashed(event, local):
                        history.stored(block_hash, at_s)
                elif isinstance(event, BlockRemoved):
                    for engine_hash in event.block_hashes:
                        history.removed(local[engine_hash], at_s)
                elif isinstance(event, AllBlocksCleared):
                    history = BlockHistory()
        return history

    def statistics(self) -> dict[str, int]:
        return {"messages": self.messages, "lost": self._lost}


def _hashed(event: BlockStored, local: dict[int | bytes, int]) -> list[int]:
    """Return the hashes of the event's blocks as `BlockHasher` computes them (no adapter, no salt)."""
    parent = SEED if event.parent_block_hash is None else local[event.parent_block_hash]
    hashes = []
    for index, engine_hash in enumerate(event.block_hashes):
        tokens = event.token_ids[index * event.block_size : (index + 1) * event.block_size]
        parent = local[engine_hash] = xxhash.xxh3_64_intdigest(array("I", tokens).tobytes(), seed=parent)
        hashes.append(parent)
    return hashes


@asynccontextmanager
async def listening(source: KvEventSource) -> AsyncIterator[EventLog]:
    """Subscribe while the block runs."""
    log = EventLog()
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.SUB)
    socket.set_hwm(0)
    socket.setsockopt_string(zmq.SUBSCRIBE, source.topic)
    socket.connect(source.endpoint)
    task = asyncio.create_task(_receive(socket, log))
    try:
        yield log
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        socket.close(linger=0)
        context.term()


async def settled(log: EventLog) -> None:
    """Wait until no event has arrived for `SETTLE_S`."""
    seen = -1
    while seen != log.messages:
        seen = log.messages
        await asyncio.sleep(SETTLE_S)


async def _receive(socket: zmq.asyncio.Socket, log: EventLog) -> None:
    while True:
        log.add(await socket.recv_multipart())

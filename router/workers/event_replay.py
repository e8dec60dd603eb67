"""One replay: ask a worker's publisher for the batches of KV events that it still buffers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum

import zmq

from backends.vllm.events import ReplayedBatch, parse_replay, replay_request
from router.workers.event_pump import EventPump
from router.workers.event_sockets import configure

IDLE_S = 5.0
"""A replay fails after this time without a frame. vLLM looks for requests at least every 100 ms."""
MAX_BUFFERED_BYTES = 512 << 20
"""Batches received and not applied yet. vLLM keeps 10,000 steps by default, about 20 kB each on a busy worker."""


class ReplayOutcome(StrEnum):
    COMPLETE = "complete"
    TIMEOUT = "timeout"
    BROKEN = "broken"


class EventReplay:
    """A DEALER socket for one replay request. It passes each batch from `start_seq` on to `on_batch`, then calls
    `on_end` once.

    Each request has its own socket, so that a late answer to an earlier request is never taken for an answer to this
    one.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        pump: EventPump,
        address: str,
        start_seq: int,
        on_batch: Callable[[int, bytes], None],
        on_end: Callable[[ReplayOutcome], None],
        idle_s: float = IDLE_S,
    ) -> None:
        self._pump = pump
        self._on_batch = on_batch
        self._on_end = on_end
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self.batches = 0
        self._seen = 0
        self._buffered: deque[ReplayedBatch | ReplayOutcome] = deque()
        self._buffered_bytes = 0
        self._socket = context.socket(zmq.DEALER)
        try:
            # The publisher's ROUTER drops frames that are not read in time, so read all; `_take` bounds the memory.
            configure(self._socket, address, 0)
            self._socket.connect(address)
            self._socket.send_multipart(replay_request(start_seq), zmq.DONTWAIT)
        except zmq.ZMQError:
            self._socket.close()
            raise
        self._loop.add_reader(self._socket.FD, self._wake)
        self._timer = self._loop.call_later(idle_s, self._check)
        self._wake()

    def close(self) -> None:
        """Give up without calling `on_end`. A second call changes nothing."""
        if not self._socket.closed:
            self._timer.cancel()
            self._pump.drop(self._drain)
            self._buffered.clear()
            self._loop.remove_reader(self._socket.FD)
            self._socket.close()

    def _wake(self) -> None:
        self._pump.wake(self._drain)

    def _drain(self, deadline_s: float) -> bool:
        """Receive all batches first, because only this bounds the socket's queue; then apply them."""
        if self._take(deadline_s):
            return True
        while self._buffered:
            batch = self._buffered.popleft()
            if isinstance(batch, ReplayOutcome):
                self._end(batch)
                return False
            self._buffered_bytes -= len(batch.payload)
            self.batches += 1
            self._on_batch(batch.seq, batch.payload)
            if time.perf_counter() >= deadline_s:
                return True
        return False

    def _take(self, deadline_s: float) -> bool:
        while time.perf_counter() < deadline_s:
            try:
                batch = parse_replay(self._socket.recv_multipart(zmq.DONTWAIT))
            except zmq.Again:
                return False
            except ValueError:
                self._buffered.append(ReplayOutcome.BROKEN)
                return False
            if not isinstance(batch, ReplayedBatch):
                self._buffered.append(ReplayOutcome.COMPLETE)
                return False
            self._buffered.append(batch)
            self._buffered_bytes += len(batch.payload)
            if self._buffered_bytes > MAX_BUFFERED_BYTES:
                self._buffered.clear()
                self._buffered.append(ReplayOutcome.BROKEN)
                return False
        return True

    def _check(self) -> None:
        if self.batches == self._seen:
            self._end(ReplayOutcome.TIMEOUT)
        else:
            self._seen = self.batches
            self._timer = self._loop.call_later(self._idle_s, self._check)

    def _end(self, outcome: ReplayOutcome) -> None:
        self.close()
        self._on_end(outcome)

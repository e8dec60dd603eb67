"""One replay: asks a worker's publisher for the batches of KV events it still buffers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum

import zmq

from backends.vllm.events import ReplayedBatch, parse_replay, replay_request
from router.workers.event_pump import EventPump

IDLE_S = 5.0
"""Without a frame for this long the replay has failed. vLLM looks for requests at least every 100 ms."""
MAX_MESSAGE_BYTES = 2 << 20
"""The largest batch that is read: about 280,000 tokens stored in one step, which is more than vLLM computes in one.
A larger one breaks the connection. Applying one this large takes a few tenths of a second of the event loop."""

MAX_HELD_BYTES = 512 << 20
"""Batches that have come and are not applied yet. vLLM keeps 10,000 steps by default, about 20 kB each where it is
busy."""


class ReplayOutcome(StrEnum):
    """How a replay ended."""

    COMPLETE = "complete"
    TIMEOUT = "timeout"
    BROKEN = "broken"


class Replay:
    """A one-shot DEALER: hands each batch from `start_seq` on to `on_batch`, then calls `on_end` exactly once.

    A socket per request, so that a late answer to an earlier one is never taken for this one's.
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
        self._batches = 0
        self._seen = 0
        self._held: deque[ReplayedBatch | ReplayOutcome] = deque()
        self._held_bytes = 0
        self._socket = context.socket(zmq.DEALER)
        try:
            _configure(self._socket, address)
            self._socket.connect(address)
            self._socket.send_multipart(replay_request(start_seq), zmq.DONTWAIT)
        except zmq.ZMQError:
            self._socket.close()
            raise
        self._loop.add_reader(self._socket.FD, self._wake)
        self._timer = self._loop.call_later(idle_s, self._check)
        self._wake()

    @property
    def batches(self) -> int:
        """Batches handed on so far."""
        return self._batches

    def close(self) -> None:
        """Give up without a word. Closing twice is closing once."""
        if not self._socket.closed:
            self._timer.cancel()
            self._pump.drop(self._drain)
            self._held.clear()
            self._loop.remove_reader(self._socket.FD)
            self._socket.close()

    def _wake(self) -> None:
        self._pump.wake(self._drain)

    def _drain(self, deadline_s: float) -> bool:
        """Take in all that has come, since nothing else bounds what waits in the socket; then apply."""
        if self._take(deadline_s):
            return True
        while self._held:
            batch = self._held.popleft()
            if isinstance(batch, ReplayOutcome):
                self._end(batch)
                return False
            self._held_bytes -= len(batch.payload)
            self._batches += 1
            self._on_batch(batch.seq, batch.payload)
            if time.perf_counter() >= deadline_s:
                return True
        return False

    def _take(self, deadline_s: float) -> bool:
        """Read what has come; False when there is no more of it."""
        while time.perf_counter() < deadline_s:
            try:
                batch = parse_replay(self._socket.recv_multipart(zmq.DONTWAIT))
            except zmq.Again:
                return False
            except ValueError:
                self._held.append(ReplayOutcome.BROKEN)
                return False
            if not isinstance(batch, ReplayedBatch):
                self._held.append(ReplayOutcome.COMPLETE)
                return False
            self._held.append(batch)
            self._held_bytes += len(batch.payload)
            if self._held_bytes > MAX_HELD_BYTES:
                self._held.clear()
                self._held.append(ReplayOutcome.BROKEN)
                return False
        return True

    def _check(self) -> None:
        if self._batches == self._seen:
            self._end(ReplayOutcome.TIMEOUT)
        else:
            self._seen = self._batches
            self._timer = self._loop.call_later(self._idle_s, self._check)

    def _end(self, outcome: ReplayOutcome) -> None:
        self.close()
        self._on_end(outcome)


def _configure(socket: zmq.Socket[bytes], address: str) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    # The publisher's ROUTER drops what we do not take in time, so take everything; `_take` bounds it.
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.IPV6, int("[" in address))

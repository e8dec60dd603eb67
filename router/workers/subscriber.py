"""Feed one rank's KV events from the publisher's socket into the residency map."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import zmq

from backends.vllm.events import split_frames
from backends.worker import KvEventSource
from router.metrics.instruments import Counter
from router.residency.residency_map import ResidencyMap
from router.residency.view import Ingest
from router.residency.worker_cache import WorkerCache
from router.workers.event_pump import EventPump
from router.workers.event_replay import IDLE_S, EventReplay, ReplayOutcome
from router.workers.event_sockets import LinkMonitor, configure

MAX_QUEUED = 64
"""Batches that wait in this process. Further batches wait at the worker, whose limit is 100,000.

A worker that publishes faster than the gateway reads must not fill the gateway's memory.
"""
RELINK_S = 5.0
"""Time without a link after which the subscription gets a new socket.

ZMQ reconnects by itself, but not after a message that it refused to read.
"""
RECONNECT_MS = 100
RECONNECT_MAX_MS = 2_000
HEARTBEAT_MS = 5_000
HEARTBEAT_TIMEOUT_MS = 15_000


class Subscriber:
    """A SUB socket on the running loop. It requests a replay where the residency map asks for one.

    `on_lost` is called when the link drops, which shows a stopped worker before its next probe does.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        pump: EventPump,
        residency: ResidencyMap,
        replays: Counter,
        *,
        slot: int,
        worker: str,
        source: KvEventSource,
        on_lost: Callable[[], None],
        replay_idle_s: float = IDLE_S,
    ) -> None:
        self.slot = slot
        self.source = source
        self._context = context
        self._pump = pump
        self._residency = residency
        self._replays = replays
        self._worker = worker
        self._on_lost = on_lost
        self._replay_idle_s = replay_idle_s
        self._replay: EventReplay | None = None
        self._missing = 0
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: LinkMonitor | None = None
        self._relink: asyncio.TimerHandle | None = None
        self._linked = False
        self._links = 0
        self._batches = 0
        self._malformed = 0
        self._bytes = 0
        self._received_wall_s: float | None = None

    def start(self) -> None:
        """Connect to the publisher, and start to receive.

        Raises:
            zmq.ZMQError: the address cannot be used.
        """
        self._cache.events_from(self.source.endpoint, self.source.topic)
        self._open()

    def _open(self) -> None:
        socket = self._socket = self._context.socket(zmq.SUB)
        asyncio.get_running_loop().add_reader(socket.FD, self._wake)
        try:
            _configure(socket, self.source)
            self._monitor = LinkMonitor(socket, self._link_up, self._link_lost)
            socket.connect(self.source.endpoint)
        except zmq.ZMQError:
            self.close()
            raise
        self._wake()

    def close(self) -> None:
        """Close every socket and leave the view unchanged. A second call changes nothing."""
        if self._relink is not None:
            self._relink.cancel()
        self._shut()

    def _shut(self) -> None:
        socket, self._socket = self._socket, None
        if socket is None:
            return
        self._end_replay()
        self._pump.drop(self._drain)
        asyncio.get_running_loop().remove_reader(socket.FD)
        if self._monitor is not None:
            self._monitor.close()
        socket.close()

    @property
    def _cache(self) -> WorkerCache:
        return self._residency.slot(self.slot)

    @property
    def linked(self) -> bool:
        return self._linked

    def relearn(self) -> None:
        """Prove the view again with a replay, because the worker may be another process or a replay failed."""
        if self._linked and self._replay is None:
            self._cache.link_lost()
            self._follow(self._cache.link_up())

    def statistics(self) -> dict[str, Any]:
        """Return link and traffic. `lag_s` is the age of the newest batch at its arrival, by the clocks of the two
        hosts."""
        return {
            "endpoint": self.source.endpoint,
            "linked": self._linked,
            "links": self._links,
            "batches": self._batches,
            "bytes": self._bytes,
            "malformed": self._malformed,
            "replaying": self._replay is not None,
            "lag_s": self._lag_s(),
        }

    def _lag_s(self) -> float | None:
        sent_s = self._cache.state().last_event_ts_s
        received_s = self._received_wall_s
        return max(0.0, received_s - sent_s) if received_s is not None and sent_s is not None else None

    def _link_up(self) -> None:
        self._linked = True
        self._links += 1
        if self._relink is not None:
            self._relink.cancel()
        self._follow(self._cache.link_up())

    def _link_lost(self) -> None:
        if not self._linked:
            return
        self._linked = False
        self._end_replay()
        self._cache.link_lost()
        self._relink = asyncio.get_running_loop().call_later(RELINK_S, self._begin_again)
        self._on_lost()

    def _begin_again(self) -> None:
        self._shut()
        self._relink = asyncio.get_running_loop().call_later(RELINK_S, self._begin_again)
        try:
            self._open()
        except zmq.ZMQError:  # for example no descriptors left: the next timer tries again
            self._shut()

    def _wake(self) -> None:
        self._pump.wake(self._drain)

    def _drain(self, deadline_s: float) -> bool:
        while (socket := self._socket) is not None:
            try:
                frames = socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return False
            self._take(frames)
            if time.perf_counter() >= deadline_s:
                return True
        return False

    def _take(self, frames: list[bytes]) -> None:
        self._received_wall_s = time.time()
        try:
            seq, payload = split_frames(frames)
        except ValueError:
            self._malformed += 1
            return
        self._batches += 1
        self._bytes += len(payload)
        self._follow(self._cache.ingest(seq, payload))

    def _follow(self, ingest: Ingest) -> None:
        if ingest.replay_from is not None:
            self._ask(ingest.replay_from)

    def _ask(self, start_seq: int) -> None:
        self._end_replay()
        self._missing = 0
        address = self.source.replay_endpoint
        if address is None:
            self._unavailable()
            return
        try:
            self._replay = EventReplay(
                self._context, self._pump, address, start_seq, self._replayed, self._replay_ended, self._replay_idle_s
            )
        except zmq.ZMQError:
            self._unavailable()

    def _unavailable(self) -> None:
        self._replays.add(1.0, (self._worker, "unavailable"))
        # The result is ignored: it could only ask for the replay that was just found to be impossible.
        self._cache.replay_ended(False)

    def _replayed(self, seq: int, payload: bytes) -> None:
        self._received_wall_s = time.time()
        self._missing += self._cache.ingest(seq, payload, replayed=True).missing

    def _replay_ended(self, outcome: ReplayOutcome) -> None:
        replay, self._replay = self._replay, None
        ended = self._cache.replay_ended(outcome is ReplayOutcome.COMPLETE)
        word = outcome.value
        if outcome is ReplayOutcome.COMPLETE:
            filled = "filled" if replay is not None and replay.batches else "empty"
            word = "partial" if self._missing + ended.missing else filled
        self._replays.add(1.0, (self._worker, word))
        self._follow(ended)

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.close()
            self._replay = None


def _configure(socket: zmq.Socket[bytes], source: KvEventSource) -> None:
    configure(socket, source.endpoint, min(source.hwm, MAX_QUEUED))
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    # Missed ZMTP heartbeats show a host that vanished without a FIN; TCP alone needs two hours.
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    socket.subscribe(source.topic)

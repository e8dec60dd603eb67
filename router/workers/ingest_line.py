"""The connection of a gateway process to the process that ingests KV events (`ingester`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from backends.worker import KvEventSource
from router.residency.changes import ViewChange
from router.residency.followed import FollowedIndex
from router.residency.residency_map import ResidencyMap
from router.residency.shared_blocks import SharedBlocks
from router.workers import ingest_messages as messages
from router.workers.subscriber import SubscriberMetrics
from router.workers.table_files import mapped

AGAIN_S = 0.2
"""Time between two tries to connect."""
SILENT_S = 5.0
"""Time without a message after which the other process counts as stopped. It sends one every second."""
MAX_UNSENT_BYTES = 16 << 20
"""Bytes that may wait for the other process."""
_LOOKS = 5
"""Looks for a message in `SILENT_S`. They are counted, so that a pause of this process is no silence of the other."""

log = logging.getLogger("warmroute.workers")


class IngestMetrics(SubscriberMetrics, Protocol):
    def event_iteration(self, duration_s: float) -> None:
        """Observe the time that one iteration of the event loop spent on KV events."""


class FollowedPublisher:
    """A publisher whose events another process ingests, with the interface of `Subscriber`. Satisfies
    `ViewIngester`."""

    def __init__(
        self,
        line: IngestLine,
        channel: int,
        *,
        slot: int,
        worker: str,
        source: KvEventSource,
        on_lost: Callable[[], None],
    ) -> None:
        self.slot = slot
        self.source = source
        self.worker = worker
        self.channel = channel
        self.linked = False
        self._line = line
        self._on_lost = on_lost
        self._asked = False
        self._link: dict[str, Any] = {}

    def start(self) -> None:
        self._line.residency.events_from(self.slot, self.source.endpoint, self.source.topic)
        self._line.open(self)

    def close(self) -> None:
        """Follow it no more, and forget its events, because its number in the tables may go to another view."""
        self._line.shut(self)

    def relearn(self) -> None:
        """Prove the view again with a replay."""
        if self.linked:
            self._line.send(messages.Prove(self.channel))

    def statistics(self) -> dict[str, Any]:
        """Return link and traffic, as `Subscriber.statistics`, and the id of the process that ingests."""
        waiting = {"links": 0, "batches": 0, "bytes": 0, "malformed": 0, "replaying": False, "lag_s": None}
        return {
            **waiting,
            **self._link,
            "endpoint": self.source.endpoint,
            "linked": self.linked,
            "ingested_by": self._line.pid,
        }

    # from the line

    def ask(self) -> None:
        if self._asked:
            return
        self._asked = True
        state = self._line.residency.state(self.slot)
        source = astuple(self.source)
        self._line.send(messages.Follow(self.channel, self.worker, state.block_size, state.capacity_blocks, *source))

    def connected(self) -> None:
        """Begin again with another process."""
        self._asked = False
        self._line.residency.forget_events(self.slot)
        self.ask()

    def disconnected(self) -> None:
        """Record that the process that ingests has ended, or that this one was too slow."""
        self.linked = False
        self._asked = False
        self._line.residency.unfollow(self.slot)

    def take(self, change: ViewChange) -> None:
        if change.whole_from is not None:
            self._asked = False
        if not self._line.residency.follow(self.slot, change, self):
            self.ask()
            return
        was_linked, self.linked = self.linked, change.linked
        if was_linked and not self.linked:
            self._on_lost()

    def tell(self, figures: messages.Figures) -> None:
        self._link = figures.link
        self._line.residency.take_figures(self.slot, figures.view)

    # `ViewIngester`

    def configure(self, block_size: int | None, capacity_blocks: int | None) -> None:
        self._line.send(messages.Configure(self.channel, block_size, capacity_blocks))

    def learn(self, chain: Sequence[int], hits: int, departures: int, orphans: int) -> None:
        packed = array("Q", chain).tobytes()
        self._line.send(messages.Learn(self.channel, packed, hits, departures, orphans))

    def relearned(self) -> None:
        self._line.send(messages.Relearned(self.channel))

    def thin(self, hashes: Sequence[int]) -> None:
        self._line.send(messages.Thin(self.channel, array("Q", hashes).tobytes()))

    def asked(self, block: int) -> None:
        self._line.send(messages.AskedAgain(self.channel, block))

    def recomputes(self, ticket_id: int, block: int) -> None:
        self._line.send(messages.Recomputes(self.channel, ticket_id, block))

    def released(self, ticket_id: int) -> None:
        self._line.send(messages.Released(self.channel, ticket_id))


class IngestLine(asyncio.Protocol):
    """Follow publishers over the Unix socket at `path`, and connect again whenever the connection ends.

    `index` is that of `residency`; its tables are replaced as the other process makes them.
    """

    def __init__(self, path: Path, residency: ResidencyMap, index: FollowedIndex, metrics: IngestMetrics) -> None:
        self.residency = residency
        self.pid: int | None = None
        """Id of the process that ingests; None while there is no connection."""
        self._path = path
        self._index = index
        self._metrics = metrics
        self._frames = messages.FrameSplitter()
        self._transport: asyncio.Transport | None = None
        self._channels = 0
        self._silent = 0
        """Looks since the last message."""
        self._followed: dict[int, FollowedPublisher] = {}
        self._publishers: dict[int, FollowedPublisher] = {}
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep(), name="KV events")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.pid = None
        if self._transport is not None:
            self._transport.abort()

    def publisher(
        self, *, slot: int, worker: str, source: KvEventSource, on_lost: Callable[[], None]
    ) -> FollowedPublisher:
        self._channels += 1
        return FollowedPublisher(self, self._channels, slot=slot, worker=worker, source=source, on_lost=on_lost)

    def open(self, publisher: FollowedPublisher) -> None:
        self._followed[publisher.channel] = publisher
        if self.pid is not None:
            publisher.ask()

    def shut(self, publisher: FollowedPublisher) -> None:
        """Follow a publisher no more."""
        if self._followed.pop(publisher.channel, None) is not None:
            self._publishers = {number: one for number, one in self._publishers.items() if one is not publisher}
            self.send(messages.Unfollow(publisher.channel))
            self.residency.forget_events(publisher.slot)

    def send(self, message: messages.ToIngester) -> None:
        """Send a message, if there is a connection."""
        if self.pid is not None and self._transport is not None:
            self._transport.write(messages.frame_of([message]))
            if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                self._transport.abort()

    async def _keep(self) -> None:
        while True:
            self._ended.clear()
            try:
                await asyncio.get_running_loop().create_unix_connection(lambda: self, str(self._path))
                await self._listen()
            except OSError as error:
                log.debug("no process ingests KV events", extra={"reason": str(error)})
            await asyncio.sleep(AGAIN_S)

    async def _listen(self) -> None:
        """Wait for the end of the connection, and end it if the other process is silent."""
        self._silent = 0
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), SILENT_S / _LOOKS)
            self._silent += 1
            if self._silent > _LOOKS and self._transport is not None:
                log.warning("the process that ingests KV events is silent", extra={"pid": self.pid})
                self._transport.abort()
                await self._ended.wait()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not derived from it
        self._frames = messages.FrameSplitter()

    def data_received(self, data: bytes) -> None:
        started_s = time.perf_counter()
        self._silent = 0
        try:
            for body in self._frames.bodies(data):
                for message in messages.TO_FOLLOWER.decode(body):
                    self._take(message)
        except msgspec.DecodeError as error:
            log.error("unknown message about KV events", extra={"reason": str(error)})
            assert self._transport is not None
            self._transport.abort()
        self._metrics.event_iteration(time.perf_counter() - started_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.pid is not None:
            log.warning("the process that ingests KV events has ended", extra={"pid": self.pid})
        self.pid = None
        self._publishers.clear()
        for publisher in self._followed.values():
            publisher.disconnected()
        self._ended.set()

    def _take(self, message: messages.ToFollower) -> None:
        match message:
            case ViewChange():
                publisher = self._publishers.get(message.publisher)
                if publisher is not None:
                    publisher.take(message)
            case messages.Table():
                try:
                    table = SharedBlocks(mapped(message.path), message.places, message.words)
                except FileNotFoundError:  # another table has taken its place, and comes next
                    return
                self._index.tables[message.medium] = table
            case messages.Following():
                if message.channel in self._followed:
                    self._publishers[message.publisher] = self._followed[message.channel]
            case messages.Figures():
                self._index.blocks = message.blocks
                if message.publisher in self._publishers:
                    self._publishers[message.publisher].tell(message)
            case messages.ReplayEnded():
                if message.publisher in self._publishers:
                    self._metrics.replayed(self._publishers[message.publisher].worker, message.outcome)
            case messages.Hello():
                self.pid = message.pid
                self._index.tables.clear()
                for followed in self._followed.values():
                    followed.connected()

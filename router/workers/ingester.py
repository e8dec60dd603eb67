"""The process that ingests the workers' KV events for all gateway processes of a host.

It has no list of workers. It subscribes to the publishers that a connected process follows, writes the blocks of all
views to tables in shared memory, and sends each change of a view to every follower.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
from array import array
from pathlib import Path
from typing import Any, cast

import msgspec
import zmq

from backends.worker import KvEventSource
from router.residency.blocks import BlockIndex
from router.residency.ingested import IngestedView, SharedTables
from router.residency.shared_blocks import SharedBlocksWriter
from router.residency.view import Ingest, ViewState
from router.workers import ingest_messages as messages
from router.workers.event_pump import EventPump
from router.workers.subscriber import Subscriber
from router.workers.table_files import TableFiles

FLUSH_S = 0.02
"""Time for which changes are collected, about one step of a worker."""
FIGURES_S = 1.0
"""Time between two looks at the counters. Something is sent each time (`ingest_line.SILENT_S`)."""
PROOF_S = 20.0
"""Time for which one proof of a view serves the followers, which ask for it one after the other."""
LINGER_S = 60.0
"""Time for which a publisher without followers is kept, so that a change of a worker's settings loses no blocks."""
AGAIN_S = 1.0
"""Time after which changes are written again that found no room."""
MAX_UNREAD_BYTES = 64 << 20
"""Bytes that may wait for one follower. A slower one is disconnected, and starts again from the present state."""
_SWEEP_BLOCKS = 512

log = logging.getLogger("warmroute.workers")


class Publisher:
    """One worker's publisher: its subscription, its view and its followers. Satisfies `EventSink` and
    `SubscriberMetrics`."""

    def __init__(self, ingester: Ingester, number: int, asked: messages.Follow) -> None:
        self.number = number
        self.followers: dict[FollowerConnection, int] = {}
        """Follower -> its channel."""
        self.joining: dict[FollowerConnection, int] = {}
        """Followers that have not been sent the whole state yet, and their channels."""
        self.full = False
        """Whether there was no room for a table at the last try."""
        self.closing: asyncio.TimerHandle | None = None
        self.relearned: set[FollowerConnection] = set()
        """Followers that miss no block any more since the last loss."""
        self._losses = 0
        self._proved_s: float | None = None
        self._ingester = ingester
        self._figures: messages.Figures | None = None
        self.view = IngestedView(ingester.index, ingester.tables, number, asked.block_size, asked.capacity_blocks)
        self.subscriber = Subscriber(
            ingester.context,
            ingester.pump,
            self,
            self,
            slot=number,
            worker=asked.worker,
            source=_source(asked),
            on_lost=lambda: None,
        )

    def close(self) -> None:
        if self.closing is not None:
            self.closing.cancel()
        self.subscriber.close()
        self.view.close()

    def flush(self) -> None:
        """Send what has changed to every follower, and the whole state to those that join.

        Raises:
            OSError: there is no room for a table.
        """
        frame = messages.frame_of([self.view.changed()])
        for follower in list(self.followers):
            follower.send(frame)
        joining, self.joining = self.joining, {}
        for follower, channel in joining.items():
            self.followers[follower] = channel
            follower.send(messages.frame_of([messages.Following(channel, self.number), self.view.joined()]))
            self._figures = None

    def send_figures(self) -> None:
        """Send the counters, if they have changed."""
        figures = messages.Figures(
            self.number, self.view.figures, self.subscriber.statistics(), len(self._ingester.index)
        )
        if figures != self._figures:
            self._figures = figures
            frame = messages.frame_of([figures])
            for follower in list(self.followers):
                follower.send(frame)

    def prove(self) -> None:
        """Prove the view again with a replay, unless a follower has just asked for it."""
        now_s = asyncio.get_running_loop().time()
        if self._proved_s is None or now_s - self._proved_s >= PROOF_S:
            self._proved_s = now_s
            self.subscriber.relearn()

    def end_relearning(self) -> None:
        """End relearning if no follower misses a block any more."""
        if self.followers and self.relearned >= self.followers.keys():
            self.view.relearned()

    # sink

    def events_from(self, slot: int, address: str, topic: str = "") -> None:
        self.view.event_view.follow(address, topic)

    def link_up(self, slot: int) -> Ingest:
        return self._changed(self.view.event_view.link_up())

    def link_lost(self, slot: int) -> None:
        self.view.event_view.link_lost()
        self._ingester.changed(self)

    def ingest(self, slot: int, seq: int, payload: bytes, *, replayed: bool = False) -> Ingest:
        self._ingester.index.sweep(_SWEEP_BLOCKS)
        return self._changed(self.view.event_view.ingest(seq, payload, replayed))

    def replay_ended(self, slot: int, ok: bool) -> Ingest:
        return self._changed(self.view.event_view.replay_ended(ok))

    def state(self, slot: int) -> ViewState:
        event_view = self.view.event_view
        residency, reason = event_view.trust()
        view = event_view.view
        return ViewState(
            residency,
            reason,
            view.block_copies.blocks,
            view.block_size,
            view.capacity_blocks,
            event_view.sequence.next_seq,
            event_view.last_event_ts_s,
        )

    def replayed(self, worker: str, outcome: str) -> None:
        frame = messages.frame_of([messages.ReplayEnded(self.number, outcome)])
        for follower in self.followers:
            follower.send(frame)

    def _changed(self, ingest: Ingest) -> Ingest:
        losses = self.view.event_view.losses
        if losses != self._losses:
            self._losses = losses
            self.relearned.clear()
        self._ingester.changed(self)
        return ingest


class FollowerConnection(asyncio.Protocol):
    def __init__(self, ingester: Ingester) -> None:
        self._ingester = ingester
        self._frames = messages.FrameSplitter()
        self._transport: asyncio.Transport | None = None
        self.channels: dict[int, Publisher] = {}
        self.recomputing: set[tuple[int, int]] = set()
        """Channel and ticket of each running request that reads no cache."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not derived from it
        self._ingester.connections.add(self)
        self.send(messages.frame_of([messages.Hello(os.getpid()), *self._ingester.made.values()]))

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.bodies(data):
                for message in messages.TO_INGESTER.decode(body):
                    self._ingester.take(self, message)
        except msgspec.DecodeError as error:  # a process of another version
            log.error("a follower of KV events sent an unknown message", extra={"reason": str(error)})
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._ingester.connections.discard(self)
        for channel in list(self.channels):
            self._ingester.leave(self, channel)

    def send(self, frame: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(frame)
        if self._transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            log.warning("a process that follows KV events reads too slowly; it starts again")
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Ingester:
    """Serve followers on `listener`. The tables are in `folder` or in memory (`TableFiles`)."""

    def __init__(self, listener: socket.socket, folder: Path) -> None:
        self.index = BlockIndex()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self.pump = EventPump(lambda taken_s: None)
        self.connections: set[FollowerConnection] = set()
        self.made: dict[str | None, messages.Table] = {}
        self._listener = listener
        self._files = TableFiles(folder)
        self._files.clear()
        self.tables = SharedTables(self._table)
        self._publishers: dict[tuple[Any, ...], Publisher] = {}
        self._numbers = itertools.count()
        self._dirty: dict[Publisher, None] = {}
        self._full = False
        """Whether it was logged that there is no room."""
        self._flushing: asyncio.TimerHandle | None = None
        self._telling: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: FollowerConnection(self), sock=self._listener
        )
        self._tell()

    async def aclose(self) -> None:
        """Close every socket and remove the tables."""
        for timer in (self._flushing, self._telling):
            if timer is not None:
                timer.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()
        for publisher in self._publishers.values():
            publisher.close()
        self._publishers.clear()
        self.context.destroy(linger=0)
        self._files.clear()

    def changed(self, publisher: Publisher) -> None:
        """Send the publisher's changes soon."""
        self._dirty[publisher] = None
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def take(self, connection: FollowerConnection, message: messages.ToIngester) -> None:
        if isinstance(message, messages.Follow):
            self._join(connection, message)
            return
        publisher = connection.channels.get(message.channel)
        if publisher is None:  # it has left in the meantime
            return
        view = publisher.view
        match message:
            case messages.Unfollow():
                self.leave(connection, message.channel)
            case messages.Configure():
                view.event_view.view.configure(message.block_size, message.capacity_blocks)
                self.changed(publisher)
            case messages.Prove():
                publisher.prove()
            case messages.Relearned():
                publisher.relearned.add(connection)
                publisher.end_relearning()
            case messages.Learn():
                view.learn(array("Q", message.chain), message.hits, message.departures, message.orphans)
                self.changed(publisher)
            case messages.Thin():
                view.event_view.view.block_copies.thin(array("Q", message.hashes))
            case messages.AskedAgain():
                view.event_view.view.relearning.asked_elsewhere(message.block)
            case messages.Recomputes():
                connection.recomputing.add((message.channel, message.ticket_id))
                view.event_view.view.recomputes(_ticket(connection, message.ticket_id), message.block)
            case messages.Released():
                connection.recomputing.discard((message.channel, message.ticket_id))
                view.event_view.view.released(_ticket(connection, message.ticket_id))

    def leave(self, connection: FollowerConnection, channel: int) -> None:
        """End one channel, and the subscription a while later if nobody else follows it by then."""
        publisher = connection.channels.pop(channel)
        publisher.followers.pop(connection, None)
        publisher.joining.pop(connection, None)
        for running in [one for one in connection.recomputing if one[0] == channel]:
            connection.recomputing.discard(running)
            publisher.view.event_view.view.released(_ticket(connection, running[1]))
        publisher.relearned.discard(connection)
        publisher.end_relearning()
        if not publisher.followers and not publisher.joining:
            publisher.closing = asyncio.get_running_loop().call_later(LINGER_S, self._close, publisher)

    def _close(self, publisher: Publisher) -> None:
        publisher.close()
        self._dirty.pop(publisher, None)
        self._publishers = {key: one for key, one in self._publishers.items() if one is not publisher}

    def _join(self, connection: FollowerConnection, asked: messages.Follow) -> None:
        key = (asked.worker, _source(asked))
        publisher = self._publishers.get(key)
        if publisher is None:
            publisher = Publisher(self, next(self._numbers), asked)
            try:
                publisher.subscriber.start()
            except zmq.ZMQError as error:
                fields = {"worker": asked.worker, "address": asked.endpoint, "reason": str(error)}
                log.warning("cannot subscribe to KV events", extra=fields)
                publisher.close()
                return
            self._publishers[key] = publisher
        if publisher.closing is not None:
            publisher.closing.cancel()
            publisher.closing = None
        connection.channels[asked.channel] = publisher
        publisher.joining[connection] = asked.channel
        self._dirty.pop(publisher, None)
        self._write(publisher)

    def _flush(self) -> None:
        self._flushing = None
        dirty, self._dirty = self._dirty, {}
        for publisher in dirty:
            self._write(publisher)

    def _write(self, publisher: Publisher) -> None:
        if publisher.full:  # tried again by a timer
            return
        try:
            publisher.flush()
        except OSError as error:
            publisher.full = True
            asyncio.get_running_loop().call_later(AGAIN_S, self._write_again, publisher)
            if not self._full:
                self._full = True
                log.error("no room in memory for the table of cached blocks", extra={"reason": str(error)})
        else:
            self._full = self._full and any(one.full for one in self._publishers.values())

    def _write_again(self, publisher: Publisher) -> None:
        publisher.full = False
        if publisher in self._publishers.values():
            self._write(publisher)

    def _tell(self) -> None:
        self._telling = asyncio.get_running_loop().call_later(FIGURES_S, self._tell)
        for publisher in self._publishers.values():
            publisher.send_figures()
        for connection in list(self.connections):
            connection.send(messages.frame_of([]))  # a sign of life

    def _table(self, medium: str | None) -> SharedBlocksWriter:
        made: list[str] = []

        def allocate(size: int) -> memoryview:
            path, memory = self._files.make(size)
            made.append(path)
            return memory

        def announce(places: int, words: int) -> None:
            table = self.made[medium] = messages.Table(medium, made[-1], places, words)
            frame = messages.frame_of([table])
            for connection in list(self.connections):
                connection.send(frame)
            for path in made[:-1]:
                Path(path).unlink(missing_ok=True)
            del made[:-1]

        return SharedBlocksWriter(allocate, announce)


def _source(asked: messages.Follow) -> KvEventSource:
    return KvEventSource(asked.rank, asked.endpoint, asked.replay_endpoint, asked.topic, asked.buffer_steps, asked.hwm)


def _ticket(connection: FollowerConnection, ticket_id: int) -> int:
    """Return a number that no ticket of another follower has."""
    return hash((id(connection), ticket_id))

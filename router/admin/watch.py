"""Lists as streams of server-sent events: ``?watch=true`` on a list.

The list is read again once per `INTERVAL_S`, and what differs is sent. So a watcher needs no queue: while its client
does not read, the list is not read either, and one event at most waits for the client.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from backends.foreign_json import read_json
from router.admin.http.problems import AdminError
from router.admin.system import AdminView, TakeoverState

MEDIA_TYPE = "text/event-stream"
MOST_WATCHERS = 32
"""Streams of one port at the same time."""
INTERVAL_S = 1.0
"""Time between two reads of the list."""
HEARTBEAT_S = 15.0
"""Longest time without a byte. Proxies close connections that are silent for 60 s or so."""
SLOW_S = 10.0
"""A watcher whose client takes longer to accept an event is cut."""

log = logging.getLogger("warmroute.admin")

Entries = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Watch:
    """How a list is watched: the name of the list in the answer, the field that identifies an entry, the fields that
    may differ without a change, the most entries of one read, and further query parameters of each read. A list that
    comes `newest_first` is a log: its entries are never removed.
    """

    entries: str
    key: str
    ignored: frozenset[str] = frozenset()
    newest_first: bool = False
    most: int = 10_000
    query: Mapping[str, Any] = field(default_factory=dict)


class Watchers:
    """The number of open streams of one port."""

    def __init__(self) -> None:
        self.open = 0
        self.refused = 0

    def enter(self) -> None:
        """Count a stream.

        Raises:
            AdminError: 429, there are too many.
        """
        if self.open >= MOST_WATCHERS:
            self.refused += 1
            detail = f"{MOST_WATCHERS} watchers are open, which is the limit; close one, or read the list without watch"
            headers = {"retry-after": "10"}
            raise AdminError(HTTPStatus.TOO_MANY_REQUESTS, "too_many_watchers", detail, headers=headers)
        self.open += 1

    def leave(self) -> None:
        self.open -= 1


class EventStream(StreamingResponse):
    """A response that streams `events`, and is counted in `watchers` until it has ended."""

    def __init__(self, events: AsyncIterator[bytes], watchers: Watchers) -> None:
        watchers.enter()
        self._watchers = watchers
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(events, headers=headers, media_type=MEDIA_TYPE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they or the connection end."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._watchers.leave()


class Known:
    """The entries of a list as they were last read."""

    def __init__(self, watch: Watch, entries: Entries) -> None:
        self._watch = watch
        self._seen = {entry[watch.key]: self._signature(entry) for entry in entries}

    def update(self, entries: Entries, *, more: bool) -> Iterator[tuple[str, Any]]:
        """Return events for the differences of `entries` to what was known. `more`: older entries follow them."""
        watch, before = self._watch, self._seen
        now = {entry[watch.key]: self._signature(entry) for entry in entries}
        added = self._added(entries)
        if watch.newest_first:
            if before and more and len(added) == len(entries):
                yield "skipped", {"detail": "entries came faster than they are sent here; read the list for all"}
            added.reverse()
        else:
            yield from (("removed", {watch.key: key}) for key in before if key not in now)
        yield from (("added", entry) for entry in added)
        for entry in entries:
            key = entry[watch.key]
            if key in before and before[key] != now[key]:
                yield "changed", entry
        self._seen = now or (before if watch.newest_first else {})

    def _added(self, entries: Entries) -> Entries:
        """Return the new entries. In a log these are the ones before the first that is known."""
        key = self._watch.key
        if not self._watch.newest_first:
            return [entry for entry in entries if entry[key] not in self._seen]
        known = next((index for index, entry in enumerate(entries) if entry[key] in self._seen), len(entries))
        return entries[:known]

    def _signature(self, entry: Mapping[str, Any]) -> bytes:
        ignored = self._watch.ignored
        seen = {name: value for name, value in entry.items() if name not in ignored} if ignored else entry
        return msgspec.json.encode(seen)


Read = Callable[[], Awaitable[bytes]]
"""Return the list as JSON."""


async def events_of(watch: Watch, first: bytes, read: Read, system: AdminView) -> AsyncIterator[bytes]:
    """Yield the list `first`, then what changes in it, until the gateway's service ends or the client is too slow."""
    known = Known(watch, read_json(first)[watch.entries])
    async for event in _until_slow(_changes(watch, first, known, read, system)):
        yield event


async def _until_slow(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pass events on, and end with ``cut`` once the client has taken longer than `SLOW_S` for one."""
    async for event in events:
        began_s = time.monotonic()
        yield event
        if time.monotonic() - began_s > SLOW_S:
            detail = f"an event took longer than {SLOW_S:g} s to be read; events may be missing, watch again"
            yield encode_event("cut", {"reason": "slow", "detail": detail})
            return


async def _changes(watch: Watch, first: bytes, known: Known, read: Read, system: AdminView) -> AsyncIterator[bytes]:
    yield b"event: snapshot\ndata: " + first + b"\n\n"
    silent_since_s = time.monotonic()
    while (reason := await _wait(system)) is None:
        try:
            page = read_json(await read())
        except AdminError:
            continue  # no process answers now
        except Exception as error:
            log.error("a watched list cannot be read", exc_info=error)
            reason = "internal error; the gateway's log has the traceback"
            break
        differences = known.update(page[watch.entries], more=page["next"] is not None)
        # one write for all: a write costs more than an event, and a large fleet changes in every row
        if events := b"".join([encode_event(name, value) for name, value in differences]):
            silent_since_s = time.monotonic()
            yield events
        if time.monotonic() - silent_since_s >= HEARTBEAT_S:
            silent_since_s = time.monotonic()
            yield b": heartbeat\n\n"
    yield encode_event("end", {"reason": reason})


async def _wait(system: AdminView) -> str | None:
    """Wait for `INTERVAL_S`. Return a reason if the service ends."""
    await asyncio.sleep(INTERVAL_S)
    return _ending(system)


def _ending(system: AdminView) -> str | None:
    if system.takeover_state is TakeoverState.DONE:
        return "another process has taken over; watch again on a new connection"
    return None if system.accepting else "a shutdown has begun"


def encode_event(name: str, value: Any) -> bytes:
    """Return one server-sent event with JSON as its data. JSON has no line breaks."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"

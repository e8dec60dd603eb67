"""Workers that register themselves in Redis, each under a key with a time to live."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from backends.discovery.registration import LEASE_S, MOST_BYTES, Registration, decode, registration_key
from backends.discovery.report import MOST_WORKERS, SourceReport

LOOK_S = 0.5
"""Pause between two reads. It is at least `_REST` times as long as a read, which may be slow among many other keys."""
_REST = 10
_SCAN_KEYS = 1_000
_KEYS_AT_ONCE = 500
_MOST_READ_BYTES = 64 << 20
"""Bytes of all documents of one read. 20,000 workers with 500 bytes each take a sixth of it."""
_TURN_S = 0.005
"""The event loop gets a turn after documents were decoded for this time."""


class RedisPipeline(Protocol):
    def getrange(self, key: bytes, start: int, end: int) -> object:
        """Ask for the bytes of a value from `start` to `end`, both included."""

    async def execute(self, raise_on_error: bool) -> list[Any]:
        """Send the commands. Return the answers; errors are among them."""


class RedisClient(Protocol):
    """The part of a client of redis-py's asyncio that is used. It answers bytes."""

    def scan_iter(self, match: str, count: int) -> AsyncIterator[bytes]: ...
    def pipeline(self, transaction: bool) -> RedisPipeline: ...

    async def info(self, section: str) -> dict[str, Any]:
        """Return facts of the server; of a cluster, by node."""

    async def aclose(self) -> None: ...


class RedisSource:
    """Read the registrations of one fleet. `connect` makes a client.

    A worker whose lease has ended goes. After Redis was away, or is another process (`run_id`), workers have the time
    of a lease to register again before their absence counts.
    """

    kind = "redis"

    def __init__(
        self,
        connect: Callable[[], RedisClient],
        prefix: str,
        fleet: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._start = registration_key(prefix, fleet, "")
        self._now_s = now_s
        self._servers: frozenset[str] = frozenset()
        self._away = False
        self._lenient_until_s = 0.0
        self._known: dict[bytes, tuple[bytes, Registration | str]] = {}
        """What was read last, by key: the document, and the registration or what is wrong with it."""

    async def run(self, report: SourceReport) -> None:
        client = self._connect()
        try:
            while True:
                began_s = self._now_s()
                await self._read(client, report)
                await asyncio.sleep(max(LOOK_S, _REST * (self._now_s() - began_s)))
        finally:
            await client.aclose()

    async def _read(self, client: RedisClient, report: SourceReport) -> None:
        try:
            await self._look_at_server(client)
            documents = await self._documents(client)
        except Exception as error:  # redis-py's errors have no common class apart from it
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the library's timeouts can swallow a cancellation
                raise asyncio.CancelledError from error
            self._away = True
            report.failed(f"Redis: {type(error).__name__}: {error}")
            return
        lenient = self._now_s() < self._lenient_until_s
        kept = {key: one for key, one in self._known.items() if lenient and key not in documents}
        self._known = {**kept, **await self._decoded(documents)}
        found = [one for _, one in self._known.values() if isinstance(one, Registration)]
        refused = [
            f"{key.decode(errors='replace')}: {one}" for key, (_, one) in self._known.items() if isinstance(one, str)
        ]
        report.answer({one.worker_id: one for one in found}, refused, complete=not lenient)

    async def _look_at_server(self, client: RedisClient) -> None:
        """Be lenient for the time of a lease if the server was away, is another one, or has just started."""
        servers = dict(_servers(await client.info("server")))
        young = min(servers.values(), default=LEASE_S) < LEASE_S
        other = bool(self._servers) and not self._servers >= servers.keys()
        if self._away or other or (young and not self._servers):
            self._lenient_until_s = self._now_s() + LEASE_S
        self._away, self._servers = False, frozenset(servers)

    async def _documents(self, client: RedisClient) -> Mapping[bytes, bytes]:
        keys = []
        async for key in client.scan_iter(match=_escaped(self._start) + "*", count=_SCAN_KEYS):
            keys.append(key)
            if len(keys) > 2 * MOST_WORKERS:  # SCAN may name a key twice
                raise ValueError(f"more than {MOST_WORKERS} registrations")
        keys = list(dict.fromkeys(keys))
        documents: dict[bytes, bytes] = {}
        size_bytes = 0
        for at in range(0, len(keys), _KEYS_AT_ONCE):
            part = keys[at : at + _KEYS_AT_ONCE]
            found = dict(zip(part, await _beginnings(client, part), strict=True))
            documents |= {key: text for key, text in found.items() if text}
            size_bytes += sum(map(len, found.values()))
            if size_bytes > _MOST_READ_BYTES:
                raise ValueError(f"registrations of more than {_MOST_READ_BYTES} bytes")
        return documents

    async def _decoded(self, documents: Mapping[bytes, bytes]) -> dict[bytes, tuple[bytes, Registration | str]]:
        found = {}
        began_s = time.perf_counter()
        for key, text in documents.items():
            found[key] = self._registration(key, text)
            if time.perf_counter() - began_s > _TURN_S:
                await asyncio.sleep(0)
                began_s = time.perf_counter()
        return found

    def _registration(self, key: bytes, text: bytes) -> tuple[bytes, Registration | str]:
        known = self._known.get(key)
        if known is not None and known[0] == text:
            return known
        try:
            registration = decode(text)
            expected = self._start + registration.worker_id
            if key.decode(errors="replace") != expected:
                return text, f"the document of another key, {expected}"
        except ValueError as error:
            return text, str(error)
        return text, registration


async def _beginnings(client: RedisClient, keys: Sequence[bytes]) -> list[bytes]:
    """Return as much of each value as a registration may have, and one byte; nothing of a key that is gone or holds
    something else. A long value is not read whole.

    Raises:
        Exception: Redis refused a command for another reason than the kind of the value.
    """
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.getrange(key, 0, MOST_BYTES)
    answers = await pipeline.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception) and "WRONGTYPE" not in str(answer):
            raise answer
    return [answer if isinstance(answer, bytes) else b"" for answer in answers]


def _servers(info: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the run id and the seconds since the start of each server that answered."""
    if "run_id" in info:
        yield str(info["run_id"]), float(info.get("uptime_in_seconds", LEASE_S))
        return
    for node in info.values():
        if isinstance(node, Mapping):
            yield from _servers(node)


def _escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[]\\^" else letter for letter in text)

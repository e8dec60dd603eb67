"""Workers that register themselves in Redis, each under a key with a time to live."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from backends.discovery.registration import LEASE_S, Registration, decode, registration_key
from backends.discovery.report import MOST_WORKERS, SourceReport

LOOK_S = 0.5
"""Pause between two reads. It is at least `_REST` times as long as a read, which may be slow among many other keys."""
_REST = 10
_SCAN_KEYS = 1_000
_MGET_KEYS = 500


class RedisClient(Protocol):
    """The part of a client of redis-py's asyncio that is used. It answers bytes."""

    def scan_iter(self, match: str, count: int) -> AsyncIterator[bytes]:
        """Yield the keys that match."""
        ...

    async def mget(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys."""
        ...

    async def info(self, section: str) -> dict[str, Any]:
        """Return facts of the server; of a cluster, by node."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


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
        """The run ids at the last read."""
        self._away = False
        self._lenient_until_s = 0.0
        self._known: dict[bytes, tuple[bytes, Registration | str]] = {}
        """What was read last, by key: the document, and the registration or what is wrong with it."""

    async def run(self, report: SourceReport) -> None:
        """Read until cancelled."""
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
            self._away = True
            report.failed(f"Redis: {type(error).__name__}: {error}")
            return
        lenient = self._now_s() < self._lenient_until_s
        kept = {key: one for key, one in self._known.items() if lenient and key not in documents}
        self._known = {**kept, **{key: self._registration(key, text) for key, text in documents.items()}}
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
        parts = [keys[at : at + _MGET_KEYS] for at in range(0, len(keys), _MGET_KEYS)]
        texts = [text for part in parts for text in await client.mget(part)]
        return {key: text for key, text in zip(keys, texts, strict=True) if text is not None}

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


def _servers(info: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the run id and the seconds since the start of each server that answered."""
    if "run_id" in info:
        yield str(info["run_id"]), float(info.get("uptime_in_seconds", LEASE_S))
        return
    for node in info.values():
        if isinstance(node, Mapping):
            yield from _servers(node)


def _escaped(text: str) -> str:
    """Return `text` as a pattern that matches only itself."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^" else letter for letter in text)

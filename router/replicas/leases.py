"""The leases of replicas: one key with a time to live for each, for those who ask who there is."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from backends.foreign_json import read_json
from router.config.model import RedisConfig
from router.replicas.connection import RedisClient, key

LEASE_S = 15
RENEW_S = 5.0
MOST_LISTED = 1_000
MOST_BYTES = 32_768
"""More of a lease is not read."""
_Text = Annotated[str, Meta(max_length=256)]


class Registered(msgspec.Struct, frozen=True):
    """One replica as it registered itself. Times are Unix seconds."""

    id: _Text
    name: _Text
    version: _Text
    processes: int
    started_at: float


class ReplicaLeases:
    """The keys of a fleet."""

    def __init__(self, client: RedisClient, config: RedisConfig) -> None:
        self._client = client
        self._config = config

    async def renew(self, own: Registered) -> None:
        """Register for another `LEASE_S`."""
        name = key(self._config, "replica", own.id)
        await self._client.set(name, msgspec.json.encode(own), ex=LEASE_S)

    async def leave(self, own: Registered) -> None:
        await self._client.delete(key(self._config, "replica", own.id))

    async def all(self) -> list[Registered]:
        """Return all with a lease, by id. What cannot be read is left out."""
        found: list[Registered] = []
        async for name in self._client.scan_iter(match=key(self._config, "replica", "*"), count=1_000):
            try:
                value = await self._client.getrange(name, 0, MOST_BYTES)
                found.append(read_json(value or b"", Registered))
            except msgspec.MsgspecError:
                continue
            if len(found) >= MOST_LISTED:
                break
        return sorted(found, key=lambda one: one.id)

"""Where a sidecar registers its worker: Redis, or a gateway's admin API."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any, Protocol

import httpx
import msgspec

from backends.discovery.registration import LEASE_S, Registration, encode, registration_key
from router.config.model import Config, RedisConfig, SidecarConfig
from router.replicas.address import parse_address
from router.replicas.connection import PREFIX, connect

CALL_S = 2.0
"""Longest call to a registry."""
_MOST_SAID = 200


class RegistryError(Exception):
    """A registry could not be reached, or refused; the message says why."""


class WorkerRegistry(Protocol):
    """A place from which gateways learn of workers. Its calls raise `RegistryError`."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> tuple[str, int]: ...

    async def register(self, registration: Registration) -> None:
        """Register a worker for `LEASE_S`, or renew its lease."""

    async def withdraw(self, registration: Registration) -> None: ...

    async def aclose(self) -> None: ...


class RedisRegistry:
    """A key of Redis for each worker, which expires with the lease."""

    name = "redis"

    def __init__(self, config: RedisConfig) -> None:
        assert config.url is not None, "Redis is configured"
        self._config = config
        self._client: Any = connect(config, CALL_S)
        self.address = parse_address(config.url).hosts[0]

    async def register(self, registration: Registration) -> None:
        """Set the worker's key for `LEASE_S`."""
        await self._call("set", self._key(registration), encode(registration), ex=int(LEASE_S))

    async def withdraw(self, registration: Registration) -> None:
        """Delete the worker's key."""
        await self._call("delete", self._key(registration))

    async def aclose(self) -> None:
        await self._client.aclose()

    def _key(self, registration: Registration) -> str:
        return registration_key(PREFIX, self._config.fleet, registration.worker_id)

    async def _call(self, command: str, *arguments: Any, **options: Any) -> None:
        from redis.exceptions import RedisError

        try:
            async with asyncio.timeout(CALL_S):
                await getattr(self._client, command)(*arguments, **options)
        except (RedisError, OSError, TimeoutError) as error:
            raise RegistryError(str(error)[:_MOST_SAID] or type(error).__name__) from None


class GatewayRegistry:
    """The admin API of one gateway."""

    def __init__(self, url: str, settings: SidecarConfig) -> None:
        parts = httpx.URL(url)
        self.address = parts.host, parts.port or (443 if parts.scheme == "https" else 80)
        self.name = f"{self.address[0]}:{self.address[1]}"
        self._url = url.rstrip("/")
        self._settings = settings
        self._client = httpx.AsyncClient(timeout=CALL_S, trust_env=False, verify=ssl.create_default_context())

    async def register(self, registration: Registration) -> None:
        """Put the worker, with a lease of `LEASE_S`."""
        await self._call("PUT", registration, msgspec.to_builtins(registration) | {"ttl_s": LEASE_S})

    async def withdraw(self, registration: Registration) -> None:
        """Delete the worker. It may be gone already."""
        await self._call("DELETE", registration, None)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _call(self, method: str, registration: Registration, document: object) -> None:
        url = f"{self._url}/admin/v1/registrations/{registration.worker_id}"
        try:
            token = await asyncio.to_thread(self._token)
            headers = {"authorization": f"Bearer {token}"} if token is not None else {}
            async with asyncio.timeout(CALL_S):
                answer = await self._client.request(method, url, json=document, headers=headers)
        except (httpx.HTTPError, OSError, TimeoutError) as error:
            raise RegistryError(str(error)[:_MOST_SAID] or type(error).__name__) from None
        if not answer.is_success and not (method == "DELETE" and answer.status_code == 404):
            raise RegistryError(f"{method} answered {answer.status_code}: {answer.text[:_MOST_SAID]}")

    def _token(self) -> str | None:
        """Return the token, read again from its file, because a file may change."""
        file = self._settings.gateway_token_file
        return None if file is None else Path(file).read_text(encoding="utf-8").strip()


def registries(config: Config) -> list[WorkerRegistry]:
    """Return every registry in the settings.

    Raises:
        MissingRedisError: Redis is configured, and its package is not installed.
    """
    found: list[WorkerRegistry] = [GatewayRegistry(url, config.sidecar) for url in config.sidecar.gateways]
    if config.redis.url is not None:
        found.append(RedisRegistry(config.redis))
    return found

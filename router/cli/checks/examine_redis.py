"""Examine Redis as ``warmroute check`` does: reach it, say what it is, and try what replicas need of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from router.config.model import RedisConfig
from router.replicas.address import parse_address
from router.replicas.connection import RedisClient, connect, key

_CALL_S = 2.0
_KEPT_S = 5


@dataclass(slots=True)
class RedisReport:
    """The result. `problem` and `fix` are set if replicas cannot use this Redis now."""

    url: str
    form: str
    server: str = ""
    """Name and version, such as redis 7.0.15; empty if it does not say."""
    problem: str | None = None
    fix: str | None = None

    @property
    def line(self) -> str:
        found = self.problem or f"{self.server or 'version unknown'}, {self.form}: keys, scripts and channels work"
        return f"Redis at {self.url}: {found}"


async def examine_redis(config: RedisConfig) -> RedisReport | None:
    """Return the report; None if no Redis is configured."""
    if config.url is None:
        return None
    report = RedisReport(config.url, parse_address(config.url).form)
    client = connect(config, _CALL_S)
    try:
        async with asyncio.timeout(4 * _CALL_S):
            await client.ping()
            report.server = await _server(client)
            await _try(client, config)
    except Exception as error:  # of the library, of TLS or of the system: each has its text
        report.problem, report.fix = _explained(error)
    finally:
        await client.aclose()
    return report


async def _server(client: RedisClient) -> str:
    """Return name and version. The user may not be allowed to ask, and needs not be."""
    from redis.exceptions import ResponseError

    try:
        found: dict[str, Any] = await client.info("server")
    except ResponseError:
        return ""
    if "redis_version" not in found and found:
        found = next(iter(found.values()))  # a cluster answers per node
    name = found.get("server_name", "redis")
    return f"{name} {found.get(f'{name}_version', found.get('redis_version', '?'))}"


async def _try(client: RedisClient, config: RedisConfig) -> None:
    """Use a key, a script and a channel of the fleet."""
    trial = key(config, "check")
    await client.set(trial, b"", ex=_KEPT_S)
    await client.eval("return redis.call('GET', KEYS[1])", 1, trial)
    async with client.pubsub() as listener:
        await listener.subscribe(trial)
        await client.publish(trial, b"")


def _explained(error: Exception) -> tuple[str, str]:
    from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

    said = " ".join(str(error).split()) or type(error).__name__
    match error:
        case AuthenticationError():
            return f"refuses the login: {said}", "write redis.username and redis.password as Redis has them"
        case NoPermissionError():
            return (
                f"lacks a permission: {said}",
                "allow the user the keys and channels of warmroute:* and @all commands",
            )
        case ResponseError():
            return f"refuses a command: {said}", "write the URL of a master, and of a cluster with redis+cluster"
        case TimeoutError():
            return "does not answer in time", "see that it runs and that nothing blocks the port"
        case _:
            return f"cannot be reached: {said}", "start Redis there, or write its address in redis.url"

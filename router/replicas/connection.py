"""Make a client of Redis from the settings. It fails fast: the callers decide when to try again.

The package redis is an extra, so it is imported when the first client is made.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, TypeAlias

from router.config.model import RedisConfig
from router.replicas.address import RedisAddress, parse_address
from router.security.tls import load_authorities

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

RedisClient: TypeAlias = "Redis | RedisCluster"

PREFIX = "warmroute"
"""Start of the names of all keys and channels in Redis."""
INSTALL = "run pip install 'warmroute[redis]'"
CALL_S = 0.25
"""Longest wait for a connection or for an answer. With the library's 5 s and its retries, a call to a Redis that is
paused takes 3 s."""


class MissingRedisError(Exception):
    """The package redis is not installed."""

    def __init__(self) -> None:
        super().__init__(f"the package redis is not installed; {INSTALL}")


def connect(config: RedisConfig, call_s: float = CALL_S) -> RedisClient:
    """Return a client of `config.url`, which connects with its first call. Close it with `aclose`.

    Raises:
        MissingRedisError: the package is not installed.
        ValueError: the URL is not valid.
    """
    if config.url is None:
        raise ValueError("redis.url is not set")
    try:
        import redis.asyncio  # noqa: F401
    except ImportError:
        raise MissingRedisError from None
    address = parse_address(config.url)
    match address.form:
        case "standalone":
            return _standalone(address, config, call_s)
        case "sentinel":
            return _sentinel(address, config, call_s)
        case "cluster":
            return _cluster(address, config, call_s)


def key(config: RedisConfig, *parts: str) -> str:
    """Return a key of the fleet. The hash tag keeps all of them on one node of a cluster."""
    return ":".join((PREFIX, f"{{{config.fleet}}}", *parts))


def authorities(config: RedisConfig) -> None:
    """Read the CA file, to see that it can be used.

    Raises:
        UnusableFileError: it cannot.
    """
    if config.ca is not None:
        load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "ca", config.ca)


def _options(address: RedisAddress, config: RedisConfig, call_s: float) -> dict[str, Any]:
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    options: dict[str, Any] = {
        "username": config.username,
        "password": config.password,
        "socket_timeout": call_s,
        "socket_connect_timeout": call_s,
        "retry": Retry(NoBackoff(), 0),
        "client_name": "warmroute",
    }
    if address.tls:
        options |= {"ssl": True, "ssl_ca_certs": config.ca, "ssl_min_version": ssl.TLSVersion.TLSv1_2}
    return options


def _standalone(address: RedisAddress, config: RedisConfig, call_s: float) -> RedisClient:
    from redis.asyncio import Redis

    ((host, port),) = address.hosts
    return Redis(host=host, port=port, db=address.database, **_options(address, config, call_s))


def _sentinel(address: RedisAddress, config: RedisConfig, call_s: float) -> RedisClient:
    from redis.asyncio import Sentinel

    options = _options(address, config, call_s)
    asked = {**options, "username": None, "password": config.sentinel_password}
    made: Any = Sentinel  # without types
    sentinels = made(list(address.hosts), sentinel_kwargs=asked, db=address.database, **options)
    client: RedisClient = sentinels.master_for(address.service)
    return client


def _cluster(address: RedisAddress, config: RedisConfig, call_s: float) -> RedisClient:
    from redis.asyncio import RedisCluster
    from redis.asyncio.cluster import ClusterNode

    nodes = [ClusterNode(host, port) for host, port in address.hosts]
    return RedisCluster(startup_nodes=nodes, **_options(address, config, call_s))

"""The sources of the settings, ready to run."""

from __future__ import annotations

from typing import cast

from backends.discovery.file import FileSource
from backends.discovery.redis import RedisClient, RedisSource
from backends.discovery.report import Source
from router.config.model import Config, DiscoverySourceConfig, KubernetesSourceConfig
from router.discovery.settings import kinds_of
from router.replicas.connection import PREFIX, connect


def sources_of(config: Config) -> dict[str, Source]:
    """Return the sources by name, in the order of the settings."""
    return {name: _source(source, config) for name, source in config.discovery.sources.items()}


def _source(config: DiscoverySourceConfig, settings: Config) -> Source:
    if config.file is not None:
        return FileSource(config.file.path)
    if config.dns is not None:
        from backends.discovery.dns import DnsSource  # late: only this source needs the library

        return DnsSource(config.dns.name, config.dns.port, config.dns.scheme, config.dns.nameservers)
    if config.kubernetes is not None:
        return _kubernetes(config.kubernetes)
    if config.redis is not None:
        redis = settings.redis
        fleet = config.redis.fleet or redis.fleet
        return RedisSource(lambda: cast("RedisClient", connect(redis)), PREFIX, fleet)
    raise ValueError(f"a source without a kind: {kinds_of(config)}")


def _kubernetes(config: KubernetesSourceConfig) -> Source:
    from backends.discovery.kubernetes.api import Access  # late: only this source needs httpx here
    from backends.discovery.kubernetes.source import KubernetesSource, Wanted

    port = None if config.port is None else str(config.port)
    wanted = Wanted(config.service, config.pods, config.pool, config.namespace, port)
    return KubernetesSource(wanted, Access(config.api_url, config.token_file, config.ca_file))

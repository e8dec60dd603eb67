"""The sources of the settings, ready to run."""

from __future__ import annotations

from backends.discovery.file import FileSource
from backends.discovery.report import Source
from router.config.model import Config, DiscoverySourceConfig
from router.discovery.settings import kinds_of


def sources_of(config: Config) -> dict[str, Source]:
    """Return the sources by name, in the order of the settings."""
    return {name: _source(source) for name, source in config.discovery.sources.items()}


def _source(config: DiscoverySourceConfig) -> Source:
    if config.file is not None:
        return FileSource(config.file.path)
    if config.dns is not None:
        from backends.discovery.dns import DnsSource  # late: only this source needs the library

        return DnsSource(config.dns.name, config.dns.port, config.dns.scheme, config.dns.nameservers)
    raise ValueError(f"a source without a kind: {kinds_of(config)}")

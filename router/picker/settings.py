"""The settings of a picker: those of a gateway, with another default port, and without what gRPC cannot do."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from backends.worker import parse_endpoint
from router.config.load import Loaded, problems_of
from router.config.model import Config
from router.config.problems import ConfigError, Finding
from router.config.tree import dotted
from router.picker.pools.settings import pool_findings, rewrite_findings

PORT = 9002
"""The port of GAIE's own picker."""
_OF_HTTP: Final = (
    ("access_log",),
    ("cors_origins",),
    ("headers",),
    ("limits", "max_buffered_response_bytes"),
    ("observe_usage",),
    ("residency", "relearn"),
    ("timeouts", "client_idle_s"),
    ("timeouts", "comment_interval_s"),
    ("timeouts", "connect_s"),
    ("timeouts", "drain_idle_s"),
    ("timeouts", "first_event_s"),
    ("timeouts", "header_delay_s"),
    ("timeouts", "upstream_idle_s"),
    ("tracing",),
    ("trusted_proxies",),
)
"""Settings of what a picker leaves to the gateway in front: the HTTP of clients and of answers."""


def picker_config(loaded: Loaded) -> Config:
    """Return the settings of a picker.

    Raises:
        ConfigError: a setting asks for what a picker cannot do.
    """
    config = loaded.config
    if not any(place[:1] == ("port",) for place in loaded.places):
        config = replace(config, port=PORT)
    if unfit := problems_of(
        [*_unfit(config), *pool_findings(loaded, config), *rewrite_findings(config)], loaded.places
    ):
        raise ConfigError(unfit)
    return config


def without_effect(loaded: Loaded) -> list[str]:
    """Return the settings that a source gave and a picker has no part for."""
    return [dotted(path) for path in _OF_HTTP if any(place[: len(path)] == path for place in loaded.places)]


def _unfit(config: Config) -> Iterator[Finding]:
    if config.processes != 1:
        yield ("processes",), "a picker runs one process", "remove it, and run several pickers with redis.url"
    if config.takeover is not None:
        problem = "a picker hands no port over: its streams are short, and gateways ask another replica"
        yield ("takeover",), problem, "remove it"
    if config.uds is not None:
        yield ("uds",), "a picker listens on a TCP port", "remove it, and write port"
    if config.picker.health_port in (config.port, config.admin_port) and config.picker.health_port:
        yield (
            ("picker", "health_port"),
            f"port {config.picker.health_port} is taken by another setting",
            "write another",
        )
    if config.tls.cert_file is not None and not config.picker.secure:
        yield ("picker", "secure"), "tls has files, and picker.secure is false", "remove one of the two"
    for number, worker in enumerate(config.workers):
        host = parse_endpoint(worker.url).host
        if not _is_address(host):
            problem = f"a gateway needs the address of a worker, and {host!r} is a name"
            yield ("workers", number), problem, "write its IP address, or find it with discovery.sources.NAME.dns"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True

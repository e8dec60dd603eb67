"""Warnings about settings that work but leave something open."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from router.config.model import Config
from router.security import tenancy
from router.security.token import TokenSettings


def warnings(config: Config) -> Iterator[str]:
    if not _loopback(config.admin_host) and not TokenSettings.of(config).given:
        yield (
            f"the admin port listens on {config.admin_host} without a token: anyone who reaches it "
            "can change the fleet; set admin_token_file, or admin_host to 127.0.0.1"
        )
    if not config.worker_tls.verify:
        yield (
            "worker_tls.verify is false: workers' certificates are not checked, so anyone on the network path can "
            "read and change the traffic; set worker_tls.ca_file instead"
        )
    yield from tenancy.warnings(config)


def _loopback(host: str) -> bool:
    name = host.strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"

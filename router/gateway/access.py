"""The access log: one line per request, without anything a client said."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from router.gateway.head import RequestHead

log = logging.getLogger("warmroute.access")


class AccessLog:
    """Writes the lines, if wanted. X-Forwarded-For is believed as far as trusted proxies wrote it."""

    def __init__(self, enabled: bool, trusted_proxies: Iterable[str]) -> None:
        self.enabled = enabled
        self._trusted = tuple(ip_network(network, strict=False) for network in trusted_proxies)

    def client(self, head: RequestHead, peer: str) -> str:
        """The address nearest to the client that a trusted hop vouches for; `peer` where none does."""
        forwarded = head.fields.get(b"x-forwarded-for", b"").decode("latin-1")
        client = peer
        for address in reversed([part.strip() for part in forwarded.split(",") if part.strip()]):
            if not self._trusts(client):
                break
            if _address(address) is None:
                break
            client = address
        return client

    def write(self, head: RequestHead, peer: str, **fields: Any) -> None:
        """One line."""
        log.info(
            "request", extra={"method": head.method, "path": head.path, "client": self.client(head, peer), **fields}
        )

    def _trusts(self, address: str) -> bool:
        parsed = _address(address)
        return parsed is not None and any(parsed in network for network in self._trusted)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None

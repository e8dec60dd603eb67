"""The access log: one line per request, without prompts or other content from the client."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from router.requests.request_head import RequestHead

log = logging.getLogger("warmroute.access")

_WITH_PORT = re.compile(r"\[([^\]]+)\](?::\d{1,5})?|([\d.]+):\d{1,5}")


class AccessLog:
    """Writes the access log. X-Forwarded-For counts only as far as trusted proxies wrote it."""

    def __init__(self, enabled: bool, trusted_proxies: Iterable[str]) -> None:
        self.enabled = enabled
        self._trusted = tuple(ip_network(network, strict=False) for network in trusted_proxies)

    def client(self, head: RequestHead, peer: str) -> str:
        """Return the address nearest to the client that a trusted proxy reports, else `peer`."""
        forwarded = head.fields.get(b"x-forwarded-for", b"").decode("latin-1")
        client = peer
        for address in reversed([part.strip() for part in forwarded.split(",") if part.strip()]):
            if not self._trusts(client):
                break
            parsed = _address(address)
            if parsed is None:
                break
            client = str(parsed)
        return client

    def write(self, head: RequestHead, peer: str, **fields: Any) -> None:
        """Write one line; `fields` are added to method, path and client."""
        log.info(
            "request", extra={"method": head.method, "path": head.path, "client": self.client(head, peer), **fields}
        )

    def _trusts(self, address: str) -> bool:
        parsed = _address(address)
        return parsed is not None and any(parsed in network for network in self._trusted)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address as proxies write it: an optional port, brackets around IPv6 (RFC 7239 section 6).

    An IPv4-mapped IPv6 address is returned as IPv4.
    """
    match = _WITH_PORT.fullmatch(text)
    try:
        parsed = ip_address(text if match is None else match[1] or match[2])
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed

"""The identity of a gateway in the requests that it sends, so that none comes back to it (RFC 9110 section 7.6.3)."""

from __future__ import annotations

import secrets

_PREFIX = "warmroute-"


class Instance:
    """One gateway, all of its processes included. Gateways of one fleet are different instances."""

    __slots__ = ("_token", "name", "via")

    def __init__(self, name: str = "") -> None:
        self.name = name or _PREFIX + secrets.token_hex(8)
        self.via = b"Via: 1.1 " + self.name.encode("ascii")
        """The header line of forwarded requests."""
        self._token = self.name.encode("ascii")

    def passed(self, via: bytes) -> bool:
        """Return whether a request with this Via has passed this gateway before."""
        return self._token in via

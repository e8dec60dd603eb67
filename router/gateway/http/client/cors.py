"""The CORS protocol of the Fetch standard, by configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable

from router.requests.request_head import RequestHead

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_EXPOSED = (
    b"x-request-id, x-warmroute-worker, x-warmroute-predicted-cached-tokens, x-warmroute-residency, "
    b"x-warmroute-receipt, retry-after"
)

_MAX_AGE_S = 600
"""How long a browser may cache the answer to a preflight."""


class Cors:
    """Header lines for responses and preflights. Empty while no origin is allowed."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.encode("ascii") for origin in origins)
        self._any = b"*" in self._origins

    @property
    def enabled(self) -> bool:
        return bool(self._origins)

    def lines(self, head: RequestHead) -> bytes:
        if not self._origins:
            return b""
        vary = b"" if self._any else b"vary: origin\r\n"
        origin = head.fields.get(b"origin")
        if origin is None or not (self._any or origin in self._origins):
            return vary
        allowed = b"*" if self._any else origin
        return (
            b"access-control-allow-origin: "
            + allowed
            + b"\r\naccess-control-expose-headers: "
            + _EXPOSED
            + b"\r\n"
            + vary
        )

    def preflight(self, head: RequestHead, methods: bytes) -> bytes:
        """Return the further header lines of a response to a preflight; empty if `head` is no preflight."""
        if b"access-control-request-method" not in head.fields or b"allow-origin" not in self.lines(head):
            return b""
        lines = b"access-control-allow-methods: %s\r\naccess-control-max-age: %d\r\n" % (methods, _MAX_AGE_S)
        allowed = b", ".join(_requested_headers(head))
        if allowed:
            lines += b"access-control-allow-headers: %s\r\n" % allowed
        return lines + b"vary: access-control-request-headers\r\n"


def _requested_headers(head: RequestHead) -> list[bytes]:
    """Return the names that a preflight asks for: a literal * does not cover Authorization."""
    asked = [name.strip().lower() for name in head.fields.get(b"access-control-request-headers", b"").split(b",")]
    return [name for name in dict.fromkeys(asked) if _TOKEN.fullmatch(name)]

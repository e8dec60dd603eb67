"""Cross-origin access, by configuration (the Fetch standard's CORS protocol)."""

from __future__ import annotations

from router.config.model import CorsConfig
from router.gateway.head import RequestHead

_EXPOSED = b"x-request-id, x-warmroute-worker, x-warmroute-predicted-cached-tokens, retry-after"


class Cors:
    """Header lines for responses and preflights; none while no origin is allowed."""

    def __init__(self, config: CorsConfig) -> None:
        self._origins = frozenset(origin.encode("ascii") for origin in config.allow_origins)
        self._any = b"*" in self._origins
        self._allow_headers = ", ".join(config.allow_headers).encode("ascii")
        self._max_age_s = config.max_age_s

    @property
    def enabled(self) -> bool:
        """Whether any origin is allowed."""
        return bool(self._origins)

    def lines(self, head: RequestHead) -> bytes:
        """For a response to `head`."""
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
        """For the answer to a preflight (an OPTIONS that names the method to come), besides `lines`."""
        if b"access-control-request-method" not in head.fields or b"allow-origin" not in self.lines(head):
            return b""
        return (
            b"access-control-allow-methods: %s\r\naccess-control-allow-headers: %s\r\naccess-control-max-age: %d\r\n"
            % (methods, self._allow_headers, self._max_age_s)
        )

from __future__ import annotations

from router.requests.body_buffer_limit import BodyBufferLimit
from router.security.callers import TenantUsage


class HeldBody:
    """The bytes of one body in memory, counted in the limits of all bodies and of the caller's tenant."""

    __slots__ = ("_account", "_bodies", "_held_bytes")

    def __init__(self, bodies: BodyBufferLimit, account: TenantUsage | None) -> None:
        self._bodies = bodies
        self._account = account
        self._held_bytes = 0

    def grow_to(self, body_bytes: int) -> None:
        """Count the bytes of a body that has `body_bytes` so far.

        Raises:
            RequestError: they do not fit.
        """
        grown_bytes = body_bytes - self._held_bytes
        if not grown_bytes:
            return
        if body_bytes > self._bodies.max_body_bytes:
            self._bodies.check(body_bytes)
        if self._account is not None:
            self._account.check(grown_bytes, self._held_bytes)
        self._bodies.take(grown_bytes, body_bytes)
        self._held_bytes = body_bytes
        if self._account is not None:
            self._account.body_bytes += grown_bytes

    def give_back(self) -> None:
        held_bytes, self._held_bytes = self._held_bytes, 0
        self._bodies.give_back(held_bytes)
        if self._account is not None:
            self._account.body_bytes -= held_bytes

"""How much of request bodies is kept in memory, over all connections."""

from __future__ import annotations

from collections.abc import Callable

from router.config.budgets import BODIES
from router.config.model import LimitsConfig
from router.errors import ErrorKind, RequestError

SMALL_BODY_BYTES = 65_536
"""Bodies up to this size may use all of the budget."""
RESERVED_PART = 32
"""One part in so many is kept for them: large bodies alone would leave no room for ordinary requests."""


class BodyBufferLimit:
    """Bytes of bodies in memory: those being received, those kept until no worker can need them any more, and what
    large ones are decoded to while their prompts are identified. `freed` hears of what is given back.

    A body that does not fit is refused at once. Letting it wait would keep its own first half in memory, and bodies
    that wait for one another's second half wait for ever.
    """

    __slots__ = ("_freed", "_large_limit_bytes", "_limit_bytes", "max_body_bytes", "refused", "used_bytes")

    def __init__(self, limits: LimitsConfig, freed: Callable[[int], None] = lambda size_bytes: None) -> None:
        self._freed = freed
        self._limit_bytes = BODIES.of(limits)
        self.max_body_bytes = min(limits.max_body_bytes, self._limit_bytes)
        reserved_bytes = self._limit_bytes // RESERVED_PART
        # an empty budget has room for the largest body, whatever is reserved
        self._large_limit_bytes = max(self._limit_bytes - reserved_bytes, self.max_body_bytes)
        self.used_bytes = 0
        self.refused = 0

    def check(self, size_bytes: int) -> None:
        """Refuse a body of `size_bytes` for which there is no room now. Room is taken only by what has arrived: an
        announcement costs its client nothing.

        Raises:
            RequestError: too large for any moment (413), or for this one (503).
        """
        if size_bytes > self.max_body_bytes:
            raise RequestError(ErrorKind.BODY_TOO_LARGE, f"the body is larger than {self.max_body_bytes} bytes")
        if self.used_bytes + size_bytes > self._limit_for(size_bytes):
            self._refuse()

    def take(self, size_bytes: int, body_bytes: int) -> None:
        """`size_bytes` more have arrived, of a body of at least `body_bytes`.

        Raises:
            RequestError: there is no room for them; nothing has been taken.
        """
        used_bytes = self.used_bytes + size_bytes
        if used_bytes > self._large_limit_bytes and used_bytes > self._limit_for(body_bytes):
            if size_bytes > self.max_body_bytes:
                self.check(size_bytes)
            self._refuse()
        self.used_bytes = used_bytes

    def _limit_for(self, body_bytes: int) -> int:
        return self._limit_bytes if body_bytes <= SMALL_BODY_BYTES else self._large_limit_bytes

    def _refuse(self) -> None:
        self.refused += 1
        message = "the request bodies in progress take all the memory set aside for them; try again later"
        raise RequestError(ErrorKind.TOO_MANY_REQUESTS, message)

    def lend(self, size_bytes: int) -> bool:
        """Take `size_bytes` for what a body has been decoded to, if there is room; `give_back` returns them."""
        if self.used_bytes + size_bytes > self._large_limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """`size_bytes` are needed no longer."""
        self.used_bytes -= size_bytes
        self._freed(size_bytes)

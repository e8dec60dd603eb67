"""How much of request bodies is kept in memory, over all connections."""

from __future__ import annotations

from collections.abc import Callable

from router.config.budgets import BODIES
from router.config.model import LimitsConfig
from router.errors import ErrorKind, RequestError


class BodyBudget:
    """Bytes of bodies in memory: those being received, those kept until no worker can need them any more, and what
    large ones are decoded to while their prompts are identified. `freed` hears of what is given back.

    A body that does not fit is refused at once. Letting it wait would keep its own first half in memory, and bodies
    that wait for one another's second half wait for ever.
    """

    __slots__ = ("_freed", "_limit_bytes", "max_body_bytes", "refused", "used_bytes")

    def __init__(self, limits: LimitsConfig, freed: Callable[[int], None] = lambda size_bytes: None) -> None:
        self._freed = freed
        self._limit_bytes = BODIES.of(limits)
        self.max_body_bytes = min(limits.max_body_bytes, self._limit_bytes)
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
        if self.used_bytes + size_bytes > self._limit_bytes:
            self.refused += 1
            message = "the request bodies in progress take all the memory set aside for them; try again later"
            raise RequestError(ErrorKind.TOO_MANY_REQUESTS_HELD, message)

    def take(self, size_bytes: int) -> None:
        """`size_bytes` more have arrived.

        Raises:
            RequestError: there is no room for them; nothing has been taken.
        """
        used_bytes = self.used_bytes + size_bytes
        if used_bytes > self._limit_bytes:
            self.check(size_bytes)
        self.used_bytes = used_bytes

    def lend(self, size_bytes: int) -> bool:
        """Take `size_bytes` for what a body has been decoded to, if there is room; `give_back` returns them."""
        if self.used_bytes + size_bytes > self._limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """`size_bytes` are needed no longer."""
        self.used_bytes -= size_bytes
        self._freed(size_bytes)

from __future__ import annotations

from router.config.budgets import BODIES
from router.config.model import LimitsConfig
from router.errors import ErrorKind, RequestError

SMALL_BODY_BYTES = 65_536
"""Bodies up to this size may use the whole limit."""
RESERVED_PART = 32
"""1/32 of the limit is reserved for small bodies, so that large bodies cannot block ordinary requests."""


class BodyBufferLimit:
    """Counts the bytes of bodies in memory and refuses a body that does not fit.

    It counts bodies being received, bodies kept for a retry, and the decoded form of large bodies during
    identification.
    """

    # A body that does not fit is refused at once. If it waited, its first half would stay in memory, and bodies that
    # wait for each other's memory would wait forever.

    def __init__(self, limits: LimitsConfig) -> None:
        self._limit_bytes = BODIES.of(limits)
        self.max_body_bytes = min(limits.max_body_bytes, self._limit_bytes)
        reserved_bytes = self._limit_bytes // RESERVED_PART
        # The largest body must fit into an empty buffer, even if the reserve is larger than the rest.
        self._large_limit_bytes = max(self._limit_bytes - reserved_bytes, self.max_body_bytes)
        self.used_bytes = 0
        self.refused = 0

    def check(self, size_bytes: int) -> None:
        """Refuse a body of `size_bytes` that does not fit now. Nothing is counted before bytes arrive.

        Raises:
            RequestError: 413 if the body is too large at any time, 503 if it is too large now.
        """
        if size_bytes > self.max_body_bytes:
            raise RequestError(ErrorKind.BODY_TOO_LARGE, f"the body is larger than {self.max_body_bytes} bytes")
        if self.used_bytes + size_bytes > self._limit_for(size_bytes):
            self._refuse()

    def take(self, size_bytes: int, body_bytes: int) -> None:
        """Count `size_bytes` that arrived of a body of at least `body_bytes`.

        Raises:
            RequestError: the bytes do not fit; they are not counted.
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
        message = "the memory for request bodies is in use; try again later"
        raise RequestError(ErrorKind.TOO_MANY_REQUESTS, message)

    def lend(self, size_bytes: int) -> bool:
        """Count `size_bytes` of a decoded body if they fit. Return whether they did; `give_back` returns them."""
        if self.used_bytes + size_bytes > self._large_limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes

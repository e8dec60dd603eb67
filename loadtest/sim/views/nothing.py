"""No knowledge of caches at all."""

from __future__ import annotations

from collections.abc import Sequence

from policies.view import Residency


class Nothing:
    """A memory that is always empty. Every match is unknown, which is not the same as zero."""

    __slots__ = ()

    residency = Residency.UNKNOWN

    def remember(self, chain: Sequence[int]) -> None:
        """Do nothing."""

    def known(self, chain: Sequence[int]) -> int:
        """Return 0."""
        return 0

    def statistics(self) -> dict[str, int]:
        """Return nothing, because there is nothing to count."""
        return {}

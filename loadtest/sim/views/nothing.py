"""No knowledge of caches at all."""

from __future__ import annotations

from collections.abc import Sequence

from policies.view import Residency


class Nothing:
    """Remembers nothing: every match is unknown, not zero."""

    __slots__ = ()

    residency = Residency.UNKNOWN

    def remember(self, chain: Sequence[int]) -> None:
        """Not even this."""

    def known(self, chain: Sequence[int]) -> int:
        """None."""
        return 0

    def statistics(self) -> dict[str, int]:
        """Nothing to count."""
        return {}

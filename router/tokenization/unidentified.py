"""Counts why prompts had to go without token ids."""

from __future__ import annotations

from backends.vllm.unrenderable import Unrenderable
from router.tokenization.identification_deadline import IdentificationTimeout
from router.tokenization.threads import TextUnavailable

MAX_REASONS = 100
MAX_REASON_CHARS = 200


def reason_of(error: Exception) -> str:
    """An error in words. Kept instead of the error, whose traceback keeps all that was decoded."""
    if isinstance(error, Unrenderable):
        reason = error.reason
    elif isinstance(error, TextUnavailable | IdentificationTimeout):
        reason = str(error)
    else:
        reason = f"{type(error).__name__}: {error}"
    return reason[:MAX_REASON_CHARS]


class UnidentifiedReasons:
    """Counts by reason; kinds beyond `MAX_REASONS` are counted together, since templates word their own."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, error: Exception | str) -> None:
        """One more prompt for this reason."""
        reason = error if isinstance(error, str) else reason_of(error)
        if reason not in self._counts and len(self._counts) >= MAX_REASONS:
            reason = "other"
        self._counts[reason] = self._counts.get(reason, 0) + 1

    def statistics(self) -> dict[str, int]:
        """Prompts by reason."""
        return dict(self._counts)

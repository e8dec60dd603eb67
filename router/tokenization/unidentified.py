from __future__ import annotations

from backends.vllm.unrenderable import Unrenderable
from router.tokenization.identification_deadline import IdentificationTimeout
from router.tokenization.threads import TextUnavailable

MAX_REASONS = 100
MAX_REASON_CHARS = 200


def reason_of(error: Exception) -> str:
    """Return an error in words. The error itself is not kept, since its traceback keeps the decoded body alive."""
    if isinstance(error, Unrenderable):
        reason = error.reason
    elif isinstance(error, TextUnavailable | IdentificationTimeout):
        reason = str(error)
    else:
        reason = f"{type(error).__name__}: {error}"
    return reason[:MAX_REASON_CHARS]


class UnidentifiedReasons:
    """Counts by reason. Kinds beyond `MAX_REASONS` are counted together, since templates word their own errors."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, error: Exception | str) -> None:
        reason = error if isinstance(error, str) else reason_of(error)
        if reason not in self._counts and len(self._counts) >= MAX_REASONS:
            reason = "other"
        self._counts[reason] = self._counts.get(reason, 0) + 1

    def statistics(self) -> dict[str, int]:
        return dict(self._counts)

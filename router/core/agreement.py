"""Predicted against reported cached tokens of one worker."""

from __future__ import annotations


class Agreement:
    """Counts how predictions compared with what responses reported, in requests and tokens."""

    __slots__ = ("absolute_error_tokens", "equal", "over", "reported_tokens", "under")

    def __init__(self) -> None:
        self.equal = 0
        self.over = 0
        self.under = 0
        self.absolute_error_tokens = 0
        self.reported_tokens = 0

    def compare(self, predicted_tokens: int, reported_tokens: int) -> None:
        """One response reported `reported_tokens` where `predicted_tokens` had been expected."""
        self.equal += predicted_tokens == reported_tokens
        self.over += predicted_tokens > reported_tokens
        self.under += predicted_tokens < reported_tokens
        self.absolute_error_tokens += abs(predicted_tokens - reported_tokens)
        self.reported_tokens += reported_tokens

    def statistics(self) -> dict[str, int]:
        """The counters."""
        return {
            "equal": self.equal,
            "over": self.over,
            "under": self.under,
            "absolute_error_tokens": self.absolute_error_tokens,
            "reported_tokens": self.reported_tokens,
        }

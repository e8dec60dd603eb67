"""What became of one call."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    """How a call ended."""

    FINISHED = "finished"
    LEFT = "left"
    """Its client closed the connection."""
    REJECTED = "rejected"
    """The gateway turned it away."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One call, as its client and its worker saw it.

    `predicted_tokens` is what the gateway expected to be cached when it chose the worker, None where it had no idea;
    `cached_tokens` what the worker found, None where it never began. `direct`: sent past the gateway.
    """

    id: str
    session: str
    ending: Ending
    worker: str
    sent_s: float
    ended_s: float
    ttft_s: float | None
    prompt_tokens: int
    output_tokens: int
    predicted_tokens: int | None
    cached_tokens: int | None
    direct: bool = False

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first one; None where there is no second."""
        if self.ttft_s is None or self.output_tokens < 2:
            return None
        return (self.ended_s - self.sent_s - self.ttft_s) / (self.output_tokens - 1)

    @property
    def error_tokens(self) -> int | None:
        """Predicted minus found; None where either is missing."""
        if self.predicted_tokens is None or self.cached_tokens is None:
            return None
        return self.predicted_tokens - self.cached_tokens

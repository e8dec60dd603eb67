"""The outcome of one call."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum

from loadtest.sim.answers import Answer


class Ending(StrEnum):
    """How a call ended."""

    FINISHED = "finished"
    LEFT = "left"
    """Its client closed the connection."""
    REJECTED = "rejected"
    """The gateway or the worker turned it away."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One call, as its client and its worker saw it.

    `predicted_tokens` is the number of cached tokens that the gateway expected at the decision, None if unknown.
    `cached_tokens` is the number that the worker found, None if the call never began there. `prefilled_by` is the
    worker that computed the prompt, if it was another one, to which `cached_tokens` and `predicted_tokens` then belong.
    `answer` is None if the call never reached a worker.
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
    prefilled_by: str | None = None
    answer: Answer | None = field(default=None, compare=False, repr=False)

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first one; None with fewer than two tokens."""
        if self.ttft_s is None or self.output_tokens < 2:
            return None
        return (self.ended_s - self.sent_s - self.ttft_s) / (self.output_tokens - 1)

    def token_times_s(self) -> array[float]:
        """Return the times at which the `output_tokens` reached the gateway."""
        return array("d") if self.answer is None else self.answer.times_s(self.output_tokens)

    def gaps_s(self) -> array[float]:
        """Return the times between one token and the next."""
        times_s = self.token_times_s()
        return array("d", map(float.__sub__, times_s[1:], times_s))

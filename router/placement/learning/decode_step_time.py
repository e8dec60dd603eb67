"""Learn from ended answers how a worker's decode steps grow with the context that its requests hold.

The model: an answer has g gaps between its tokens. Meanwhile the decoding requests of the worker held S context tokens
on average, and prefills of P seconds ended there. After its first token the answer takes

    f * g + k * S * g + h * P

seconds: the fixed part of the steps, the part in proportion to the context, and the prefills that ran in between.
A further request lengthens each step in proportion to its own context.
"""

from __future__ import annotations

import msgspec

from router.placement.learning.forgetting_least_squares import ForgettingLeastSquares
from router.placement.learning.prefill_estimate import ENOUGH, FORGETTING, RIDGE_OBSERVATIONS, SHORTEST_S


class WorkCounter:
    """Count a worker's work.

    The context of decodes is set when a request is reserved. In between, it changes by the prompts of requests that
    begin or end their decode. Growth by generated tokens is left out: it is small, and known only when reported.
    """

    __slots__ = ("_at_s", "_attention", "_context_token_s", "_held_tokens", "_tokens")

    def __init__(self) -> None:
        self._at_s = 0.0
        self._held_tokens = 0
        self._context_token_s = 0.0
        self._tokens = 0.0
        self._attention = 0.0

    def set_context(self, context_tokens: int, now_s: float) -> None:
        self._pass(now_s)
        self._held_tokens = context_tokens

    def began(self, prompt_tokens: int, uncached_tokens: int, attention: float, now_s: float) -> None:
        self._pass(now_s)
        self._held_tokens += prompt_tokens
        self._tokens += uncached_tokens
        self._attention += attention

    def ended(self, prompt_tokens: int, now_s: float) -> None:
        self._pass(now_s)
        self._held_tokens = max(0, self._held_tokens - prompt_tokens)

    def read(self, now_s: float) -> tuple[float, float, float]:
        """Return token-seconds of context held by decodes, and uncached tokens and attention of ended prefills."""
        self._pass(now_s)
        return self._context_token_s, self._tokens, self._attention

    def _pass(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._context_token_s += self._held_tokens * (now_s - self._at_s)
            self._at_s = now_s


class StepEstimate:
    """One worker's coefficients, by weighted non-negative least squares with forgetting.

    Time that the data cannot attribute goes to the fixed part: growth needs evidence.
    """

    __slots__ = ("_fit",)

    def __init__(self) -> None:
        self._fit = ForgettingLeastSquares(3, forgetting=FORGETTING, ridge=RIDGE_OBSERVATIONS, sweeps=4)

    @property
    def count(self) -> int:
        return self._fit.count

    @property
    def context_token_s(self) -> float | None:
        """k, the seconds that each context token adds to a step; None until there are enough observations."""
        return self._fit.coefficients[1] if self._fit.count >= ENOUGH else None

    @property
    def step_s(self) -> tuple[float, float] | None:
        """f and k: the fixed seconds of a step, and those of each context token; None until there is enough."""
        fixed_s, context_s, _ = self._fit.coefficients
        return (fixed_s, context_s) if self._fit.count >= ENOUGH else None

    def observe(self, gaps: int, context_tokens: float, prefill_s: float, decode_s: float) -> None:
        if gaps >= 1 and decode_s >= SHORTEST_S:
            features = (float(gaps), gaps * context_tokens, prefill_s)
            self._fit.observe(features, decode_s, self._fit.predict(features))


class Output(msgspec.Struct, frozen=True, gc=False):
    """Expected answer lengths in tokens: the request's own, and the mean of the others. 0 while unknown."""

    tokens: float
    others_tokens: float

    def overlap_tokens(self) -> float:
        """Return the tokens that two such answers produce while both run.

        It is the mean of the shorter of two exponential lengths; the rest of a running answer has the same
        distribution.
        """
        both = self.tokens + self.others_tokens
        return self.tokens * self.others_tokens / both if both > 0.0 else 0.0

    def held_tokens(self, prompt_tokens: int) -> float:
        """Return the mean context of the request while it decodes: the prompt and half of the answer."""
        return prompt_tokens + 0.5 * self.tokens


def decode_externality_s(
    context_token_s: float, overlap_tokens: float, own_tokens: float, requests: int, context_tokens: int
) -> float:
    """Return the seconds by which a new decode and `requests` running ones lengthen each other, summed.

    They run together for `Output.overlap_tokens` steps. Each step of the new decode takes k * S longer because of the
    others' `context_tokens`. Each step of the others takes k * n longer because of its context n
    (`Output.held_tokens`).
    """
    return context_token_s * overlap_tokens * (context_tokens + requests * own_tokens)

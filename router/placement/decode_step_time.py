"""How a worker's decode steps grow with what they hold, learned from answers that have ended.

The model: an answer with g gaps between its tokens, while the requests decoding there held S context tokens on average
and prefills of P seconds ended there, takes

    f * g + k * S * g + h * P

seconds after its first token: a step's fixed part, its share per context token, and the prefills that ran in between.
What a step takes more with each further request goes with the context that the request brings.
"""

from __future__ import annotations

from typing import NamedTuple

from router.placement.prefill_estimate import ENOUGH, FORGETTING, RIDGE_OBSERVATIONS, SHORTEST_S

_SWEEPS = 4
"""Rounds of coordinate descent per answer: it goes on from the last solution."""


class Passage(NamedTuple):
    """What has passed on a worker so far: token-seconds of the context that its decodes held, and the prefills that
    have ended, as uncached tokens and attention. What came in between is the difference of two."""

    context_token_s: float
    prefilled_tokens: float
    prefilled_attention: float


class Passing:
    """Keeps count of what passes.

    What decodes hold is looked at when a request is booked, and changes by the prompts of those that begin and end in
    between. How answers grow meanwhile is left out: it is little, and depends on when it is told.
    """

    __slots__ = ("_at_s", "_attention", "_context_token_s", "_held_tokens", "_tokens")

    def __init__(self) -> None:
        self._at_s = 0.0
        self._held_tokens = 0
        self._context_token_s = 0.0
        self._tokens = 0.0
        self._attention = 0.0

    def looked(self, context_tokens: int, now_s: float) -> None:
        """Decodes hold so much now."""
        self._pass(now_s)
        self._held_tokens = context_tokens

    def began(self, prompt_tokens: int, uncached_tokens: int, attention: float, now_s: float) -> None:
        """A prefill has ended, and its decode begun."""
        self._pass(now_s)
        self._held_tokens += prompt_tokens
        self._tokens += uncached_tokens
        self._attention += attention

    def ended(self, prompt_tokens: int, now_s: float) -> None:
        """A decode has ended."""
        self._pass(now_s)
        self._held_tokens = max(0, self._held_tokens - prompt_tokens)

    def passage(self, now_s: float) -> Passage:
        """All of it up to now."""
        self._pass(now_s)
        return Passage(self._context_token_s, self._tokens, self._attention)

    def _pass(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._context_token_s += self._held_tokens * (now_s - self._at_s)
            self._at_s = now_s


class StepEstimate:
    """One worker's coefficients, by weighted non-negative least squares with forgetting.

    Errors count as they do in `router.placement.prefill_estimate.SpeedEstimate`: relative to the prediction, and
    linearly beyond twice of it. What the data cannot tell apart goes to the fixed part, so that growth is never made
    up.
    """

    __slots__ = ("_coefficients", "_moments", "_products", "_weight", "context_token_s", "count")

    def __init__(self) -> None:
        self.count = 0
        self.context_token_s: float | None = None
        """k, seconds that each context token adds to a step; None before there are observations enough."""
        self._weight = 0.0
        self._coefficients = [0.0, 0.0, 0.0]
        self._moments = [[0.0] * 3 for _ in range(3)]
        self._products = [0.0] * 3

    def observe(self, gaps: int, context_tokens: float, prefill_s: float, decode_s: float) -> None:
        """Learn that `gaps` tokens after the first took `decode_s`, beside `context_tokens` (S) and `prefill_s` (P)."""
        if gaps < 1 or decode_s < SHORTEST_S:
            return
        features = (float(gaps), gaps * context_tokens, prefill_s)
        first_token_s = sum([c * x for c, x in zip(self._coefficients, features, strict=True)])
        if first_token_s <= 0.0:
            first_token_s = decode_s
        scale = 1.0 / (first_token_s * max(first_token_s, decode_s))
        self._weight = self._weight * FORGETTING + 1.0
        for i, row in enumerate(self._moments):
            weighted = features[i] * scale
            for j, other in enumerate(features):
                row[j] = row[j] * FORGETTING + weighted * other
            self._products[i] = self._products[i] * FORGETTING + weighted * decode_s
        self.count += 1
        self._solve()
        if self.count >= ENOUGH:
            self.context_token_s = self._coefficients[1]

    def _solve(self) -> None:
        doubt = 1.0 + RIDGE_OBSERVATIONS / self._weight
        c = self._coefficients
        for _ in range(_SWEEPS):
            for i, row in enumerate(self._moments):
                own = row[i] * (doubt if i else 1.0)
                if own > 0.0:
                    others = sum([row[j] * c[j] for j in range(3) if j != i])
                    c[i] = max(0.0, (self._products[i] - others) / own)


class Output(NamedTuple):
    """Expected lengths of answers in tokens: of the request's own, and of those it joins. 0 while nothing is known."""

    tokens: float
    others_tokens: float

    def overlap_tokens(self) -> float:
        """How many tokens two such answers get while both of them run.

        The mean of the shorter of two exponential lengths; what is left of those that have begun is as long again.
        """
        both = self.tokens + self.others_tokens
        return self.tokens * self.others_tokens / both if both > 0.0 else 0.0

    def held_tokens(self, prompt_tokens: int) -> float:
        """What the request's context comes to on average while it decodes: the prompt and half of the answer."""
        return prompt_tokens + 0.5 * self.tokens


def decode_externality_s(
    context_token_s: float, overlap_tokens: float, own_tokens: float, requests: int, context_tokens: int
) -> float:
    """What a decode costs itself and the `requests` that it joins, in seconds of streaming, all together.

    Each of its steps takes k * S longer for their `context_tokens`, and each of theirs k * n for its own n
    (`Output.held_tokens`), as long as they run together (`Output.overlap_tokens`).
    """
    return context_token_s * overlap_tokens * (context_tokens + requests * own_tokens)

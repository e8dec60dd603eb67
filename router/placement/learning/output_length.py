from __future__ import annotations

import math
from collections import OrderedDict

from router.placement.learning.decaying import DecayingMean, DecayingSum
from router.placement.learning.prefill_estimate import ENOUGH, FORGETTING
from router.placement.request import Request

KEPT = 1_024
"""Groups remembered, those with the latest answers. The number is bounded, because model names come from clients."""
LENT_ANSWERS = 2.0
"""The weight of the wider group's mean, in answers. It is above 0, since the first answer of a new kind may be unusual.
It is small, since many kinds have lengths of their own."""
SQUARES = 200
"""Answers in the mean square of decode times. A few long answers dominate it, so it needs more answers than a mean."""

_Group = tuple[str, ...]


class OutputLengths:
    """Estimates the length and the decode time of an answer before it begins.

    The length is the mean of its group, shrunk toward the mean of the wider group. The groups are: model, route and
    kind of session; model and route; model; all. A client's hint (`Request.hinted_tokens`) replaces the mean, since the
    client knows its request and gains nothing by a false hint. The client's limit (`Request.max_tokens`) holds in any
    case. The time per token depends on the fleet's load, so one mean serves all groups.
    """

    def __init__(self) -> None:
        self._means: OrderedDict[_Group, DecayingMean] = OrderedDict()
        self._all = DecayingMean(FORGETTING)
        self._seconds = DecayingSum()
        self._streamed_tokens = DecayingSum()
        self._mean_s = DecayingMean(most=SQUARES)
        self._squares = DecayingMean(most=SQUARES)

    @property
    def mean_tokens(self) -> float:
        """Mean length of all answers; 0 before the first one."""
        return self._all.value

    def observe(self, request: Request, decode_s: float | None, output_tokens: int | None) -> None:
        """Record an answer of `output_tokens` that ended `decode_s` after its first token; None if its first token was
        not visible."""
        if not output_tokens:
            return
        self._all.observe(output_tokens)
        means = self._means
        for group in _groups(request):
            mean = means.get(group)
            if mean is None:
                mean = means[group] = DecayingMean(FORGETTING)
            else:
                means.move_to_end(group)
            mean.observe(output_tokens)
        while len(self._means) > KEPT:
            self._means.popitem(last=False)
        if decode_s is not None and output_tokens > 1:
            self._seconds.add(decode_s, FORGETTING)
            self._streamed_tokens.add(output_tokens - 1, FORGETTING)
            self._mean_s.observe(decode_s)
            self._squares.observe(decode_s * decode_s)

    def remaining_s(self) -> float:
        """Return how much longer a running answer takes on average; 0 until enough answers have ended.

        It is E[T^2] / 2 E[T], the mean residual life of renewal theory. At any moment long answers are more likely to
        run than short ones. If lengths vary widely, the result is therefore a multiple of the mean.
        """
        mean_s = self._mean_s.value
        return self._squares.value / (2.0 * mean_s) if self._mean_s.weight >= ENOUGH and mean_s > 0.0 else 0.0

    def expected_tokens(self, request: Request) -> float:
        """Return the expected length of the answer to `request`; 0 while nothing is known."""
        hinted, limit = request.hinted_tokens, request.max_tokens
        tokens = self._learned_tokens(request) if hinted is None else float(hinted)
        return tokens if limit is None else min(tokens, limit)

    def most_tokens(self, request: Request) -> int:
        """Return the output tokens that a request is charged with: its limit, else the expected length, per answer."""
        tokens = request.max_tokens
        if tokens is None:
            tokens = math.ceil(self.expected_tokens(request))
        return max(0, tokens) * max(1, request.answers)

    def decode_s(self, tokens: float) -> float:
        """Return the expected decode time of an answer of `tokens`; 0 while nothing is known."""
        if not self._streamed_tokens.value:
            return 0.0
        return tokens * self._seconds.value / self._streamed_tokens.value

    def _learned_tokens(self, request: Request) -> float:
        tokens = self._all.value
        for group in _groups(request):
            mean = self._means.get(group)
            if mean is None:
                return tokens
            tokens += (mean.value - tokens) * mean.weight / (mean.weight + LENT_ANSWERS)
        return tokens


def _groups(request: Request) -> tuple[_Group, ...]:
    model, path = request.model or "", request.path
    return (model,), (model, path), (model, path, request.kind)

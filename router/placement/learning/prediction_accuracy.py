from __future__ import annotations

from dataclasses import dataclass, field

from router.residency.exact.difference import Difference


@dataclass(slots=True)
class PredictionAccuracy:
    """Count predictions and the reports of responses, in requests and tokens.

    `differences` counts, by explanation, the requests whose report differed from the prediction. `pending` counts the
    requests whose difference has no explanation yet.
    """

    equal: int = 0
    over: int = 0
    under: int = 0
    absolute_error_tokens: int = 0
    reported_tokens: int = 0
    differences: dict[Difference, int] = field(
        default_factory=lambda: {each: 0 for each in Difference if each is not Difference.PENDING}
    )
    pending: int = 0
    reporting_paths: set[str] = field(default_factory=set)
    """Paths on which a response has reported its cached tokens, among requests placed by prefix."""

    def compare(self, predicted_tokens: int, reported_tokens: int) -> None:
        self.equal += predicted_tokens == reported_tokens
        self.over += predicted_tokens > reported_tokens
        self.under += predicted_tokens < reported_tokens
        self.absolute_error_tokens += abs(predicted_tokens - reported_tokens)
        self.reported_tokens += reported_tokens

    def explain(self, difference: Difference) -> None:
        if difference is Difference.PENDING:
            self.pending += 1
        else:
            self.differences[difference] += 1

    def settle(self, difference: Difference) -> None:
        self.pending -= 1
        self.explain(difference)

    def statistics(self) -> dict[str, int | dict[str, int]]:
        return {
            "equal": self.equal,
            "over": self.over,
            "under": self.under,
            "absolute_error_tokens": self.absolute_error_tokens,
            "reported_tokens": self.reported_tokens,
            "differences": {difference.value: count for difference, count in self.differences.items()},
            "pending": self.pending,
        }

"""Groups of prompts, each group with one long prefix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

from loadtest.workload.draw import Draws
from loadtest.workload.generators.shape import Count, Positive, Shape, Tokens, says
from loadtest.workload.plan import Call, Session
from loadtest.workload.text import Text

MOST_PROMPTS = 1_000_000


class SharedPrefixes(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Single requests, each one of `groups` x `prompts` equally likely prompts: the group's prefix, then a question.

    Few-shot templates and tool descriptions look like this. A repeated prompt is reused as a whole.
    """

    kinds: ClassVar[tuple[str, ...]] = ("shared",)

    rate_per_s: Annotated[Positive, says("requests per second")] = 8.0
    groups: Annotated[Count, says("different prefixes")] = 64
    prompts: Annotated[Count, says("different questions behind each prefix")] = 128
    low_prefix_tokens: Annotated[Tokens, says("shortest prefix")] = 2_000
    high_prefix_tokens: Annotated[Tokens, says("longest prefix")] = 6_000
    question_p50_tokens: Annotated[Tokens, says("question, median")] = 120
    question_p90_tokens: Annotated[Tokens, says("question, 90th percentile")] = 600
    answer_p50_tokens: Annotated[Tokens, says("answer, median")] = 150
    answer_p90_tokens: Annotated[Tokens, says("answer, 90th percentile")] = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups * self.prompts > MOST_PROMPTS:
            raise ValueError(f"groups times prompts is {self.groups * self.prompts:,}, more than {MOST_PROMPTS:,}")

    def sessions(self, starts: Iterable[float], draws: Draws) -> Iterator[Session]:
        groups = [self._group(draws) for _ in range(self.groups)]
        for number, start_s in enumerate(starts):
            prompt = draws.rng.choice(draws.rng.choice(groups))
            answer = self.drawn_piece("answer", draws)
            yield Session(f"request-{number}", start_s, (Call(prompt, answer, kind="shared"),))

    def _group(self, draws: Draws) -> list[Text]:
        prefix = draws.piece(draws.between(self.low_prefix_tokens, self.high_prefix_tokens))
        lengths = (draws.tokens(self.question_p50_tokens, self.question_p90_tokens) for _ in range(self.prompts))
        return [Text.of([prefix, draws.piece(tokens)]) for tokens in lengths]

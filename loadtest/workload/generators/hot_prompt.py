"""One system prompt with which most of the traffic begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

from loadtest.workload.draw import Draws
from loadtest.workload.generators.shape import Count, Positive, Shape, Share, Tokens, says
from loadtest.workload.plan import Call, Session
from loadtest.workload.text import Text


class HotPrompt(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Single requests, `hot_share` of which, of kind `hot`, begin with one long system prompt; the others, of kind
    `cold`, with one of `others` prompts of the same length.

    More traffic shares the prefix than one worker can serve, so a rule that sends all of it there overloads the worker.
    """

    kinds: ClassVar[tuple[str, ...]] = ("hot", "cold")

    rate_per_s: Annotated[Positive, says("requests per second")] = 8.0
    hot_share: Annotated[Share, says("requests behind the hot prompt")] = 0.7
    others: Annotated[Count, says("other system prompts")] = 200
    system_tokens: Annotated[Tokens, says("length of a system prompt")] = 6_000
    question_p50_tokens: Annotated[Tokens, says("question, median")] = 150
    question_p90_tokens: Annotated[Tokens, says("question, 90th percentile")] = 1_200
    answer_p50_tokens: Annotated[Tokens, says("answer, median")] = 200
    answer_p90_tokens: Annotated[Tokens, says("answer, 90th percentile")] = 600

    def sessions(self, starts: Iterable[float], draws: Draws) -> Iterator[Session]:
        hot = draws.piece(self.system_tokens)
        others = [draws.piece(self.system_tokens) for _ in range(self.others)]
        for number, start_s in enumerate(starts):
            kind = "hot" if draws.rng.random() < self.hot_share else "cold"
            system = hot if kind == "hot" else draws.rng.choice(others)
            question = self.drawn_piece("question", draws)
            answer = self.drawn_piece("answer", draws)
            yield Session(f"request-{number}", start_s, (Call(Text.of([system, question]), answer, kind=kind),))

"""Conversations about long documents, more of them than the caches of the fleet hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

from loadtest.workload.draw import Draws
from loadtest.workload.generators.shape import Count, Positive, Seconds, Shape, Tokens, says
from loadtest.workload.plan import Call, Session
from loadtest.workload.text import Text


class DocumentConversations(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conversations of `turns` turns about one of `documents` documents, all of one length: question, answer, pause,
    next question.

    Conversations about one document share it, whatever worker they are on. So a busy worker often holds what an idle
    one lacks. With the default of `starts`, 192 conversations begin, spread by `rate_per_s`.
    """

    kinds: ClassVar[tuple[str, ...]] = ("document",)

    rate_per_s: Annotated[Positive, says("conversations that begin per second")] = 1.0
    starts: Annotated[Count, says("conversations, at most")] = 192
    documents: Annotated[Count, says("different documents")] = 48
    document_tokens: Annotated[Tokens, says("length of a document")] = 49_152
    turns: Annotated[Count, says("turns of a conversation")] = 6
    question_p50_tokens: Annotated[Tokens, says("question, median")] = 80
    question_p90_tokens: Annotated[Tokens, says("question, 90th percentile")] = 300
    answer_p50_tokens: Annotated[Tokens, says("answer, median")] = 200
    answer_p90_tokens: Annotated[Tokens, says("answer, 90th percentile")] = 500
    pause_s: Annotated[Seconds, says("pause before the next question")] = 5.0

    def sessions(self, starts: Iterable[float], draws: Draws) -> Iterator[Session]:
        """Yield one conversation per start."""
        documents = [Text.of([draws.piece(self.document_tokens)]) for _ in range(self.documents)]
        for number, start_s in enumerate(starts):
            yield Session(f"conversation-{number}", start_s, tuple(self._calls(draws.rng.choice(documents), draws)))

    def _calls(self, said: Text, draws: Draws) -> Iterator[Call]:
        for turn in range(self.turns):
            prompt = said.plus(draws.piece(draws.tokens(self.question_p50_tokens, self.question_p90_tokens)))
            answer = draws.piece(draws.tokens(self.answer_p50_tokens, self.answer_p90_tokens))
            yield Call(prompt, answer, self.pause_s if turn else 0.0, kind="document")
            said = prompt.plus(answer)

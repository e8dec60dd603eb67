"""Long documents uploaded while other people chat: their prefill makes everybody's stream stall."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import exp, log
from typing import Annotated, ClassVar

from loadtest.workload.draw import Draws
from loadtest.workload.generators.multi_turn import MultiTurn
from loadtest.workload.generators.shape import Count, Share, Tokens, says
from loadtest.workload.plan import Call, Session
from loadtest.workload.text import Text


class DocumentsBesideChats(MultiTurn, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Short chats as in `multi_turn`, of kind `chat`, and among them sessions of kind `upload`: a document of tens of
    thousands of tokens with a question, then a few more questions about it.

    Document lengths are log-uniform. No two uploads share a document, so each costs a full prefill.
    """

    kinds: ClassVar[tuple[str, ...]] = ("chat", "upload")

    upload_share: Annotated[Share, says("sessions that upload a document")] = 0.08
    low_document_tokens: Annotated[Tokens, says("shortest document")] = 20_000
    high_document_tokens: Annotated[Tokens, says("longest document")] = 110_000
    low_questions: Annotated[Count, says("fewest questions about a document")] = 1
    high_questions: Annotated[Count, says("most questions about a document")] = 3

    def sessions(self, starts: Iterable[float], draws: Draws) -> Iterator[Session]:
        systems = [Text.of([draws.piece(self.system_tokens)]) for _ in range(self.systems)]
        for number, start_s in enumerate(starts):
            system = draws.rng.choice(systems)
            if draws.rng.random() < self.upload_share:
                yield Session(f"upload-{number}", start_s, tuple(self._questions(system, draws)))
            else:
                yield Session(f"chat-{number}", start_s, tuple(self._calls(system, draws)))

    def _questions(self, system: Text, draws: Draws) -> Iterator[Call]:
        low, high = log(self.low_document_tokens), log(self.high_document_tokens)
        said = system.plus(draws.piece(round(exp(draws.rng.uniform(low, high)))))
        for turn in range(draws.between(self.low_questions, self.high_questions)):
            prompt = said.plus(draws.piece(draws.tokens(self.question_p50_tokens, self.question_p90_tokens)))
            answer = draws.piece(draws.tokens(self.answer_p50_tokens, self.answer_p90_tokens))
            yield Call(prompt, answer, draws.around(self.pause_p50_s, self.pause_p90_s) if turn else 0.0, kind="upload")
            said = prompt.plus(answer)

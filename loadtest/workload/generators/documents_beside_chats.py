"""Long documents uploaded while other people chat: their prefill makes everybody's stream stall."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import exp, log
from typing import Annotated, ClassVar

from loadtest.workload.draw import Draws
from loadtest.workload.generators.multi_turn import MultiTurn
from loadtest.workload.generators.shape import Count, Share, Tokens, says
from loadtest.workload.plan import Session
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
                low, high = log(self.low_document_tokens), log(self.high_document_tokens)
                document = system.plus(draws.piece(round(exp(draws.rng.uniform(low, high)))))
                questions = draws.between(self.low_questions, self.high_questions)
                yield Session(f"upload-{number}", start_s, tuple(self.turns(document, questions, draws, "upload")))
            else:
                yield self.chat(number, start_s, system, draws)

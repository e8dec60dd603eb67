"""Questions answered from retrieved passages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Annotated, ClassVar

from msgspec import Meta

from loadtest.workload.draw import Draws
from loadtest.workload.generators.shape import Count, Positive, Shape, Tokens, says
from loadtest.workload.plan import Call, Session
from loadtest.workload.text import Piece, Text


class Rag(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Single requests: a system prompt, several different passages of a corpus in order of their rank, a new question.

    Passage number k is retrieved with weight (k + 1) ** -skew. The same passages in another order, or behind another
    one, share nothing: only what stands first is reused. Every request says how long its answer may be.
    """

    kinds: ClassVar[tuple[str, ...]] = ("rag",)

    rate_per_s: Annotated[Positive, says("requests per second")] = 4.0
    system_tokens: Annotated[Tokens, says("length of the one system prompt")] = 400
    documents: Annotated[Count, says("passages in the corpus")] = 5_000
    skew: Annotated[float, Meta(ge=0, le=4), says("exponent of the passages' popularity (Zipf)")] = 1.0
    low_document_tokens: Annotated[Tokens, says("shortest passage")] = 300
    high_document_tokens: Annotated[Tokens, says("longest passage")] = 3_000
    low_retrieved: Annotated[Count, says("fewest passages in a prompt")] = 3
    high_retrieved: Annotated[Count, says("most passages in a prompt")] = 6
    question_p50_tokens: Annotated[Tokens, says("question, median")] = 40
    question_p90_tokens: Annotated[Tokens, says("question, 90th percentile")] = 150
    answer_p50_tokens: Annotated[Tokens, says("answer, median")] = 180
    answer_p90_tokens: Annotated[Tokens, says("answer, 90th percentile")] = 450

    limit_tokens: Annotated[Tokens, says("limit that clients set on an answer, which cuts it")] = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.high_retrieved > self.documents:
            raise ValueError(f"high_retrieved is {self.high_retrieved}, more than documents, {self.documents}")

    def sessions(self, starts: Iterable[float], draws: Draws) -> Iterator[Session]:
        system = draws.piece(self.system_tokens)
        lengths = (draws.between(self.low_document_tokens, self.high_document_tokens) for _ in range(self.documents))
        corpus = [draws.piece(tokens) for tokens in lengths]
        weights = list(accumulate((number + 1) ** -self.skew for number in range(self.documents)))
        for number, start_s in enumerate(starts):
            found = self._retrieved(corpus, weights, draws)
            question = self.drawn_piece("question", draws)
            tokens = min(self.limit_tokens, draws.tokens(self.answer_p50_tokens, self.answer_p90_tokens))
            prompt = Text.of([system, *found, question])
            call = Call(prompt, draws.piece(tokens), kind="rag", max_tokens=self.limit_tokens)
            yield Session(f"request-{number}", start_s, (call,))

    def _retrieved(self, corpus: list[Piece], weights: list[float], draws: Draws) -> list[Piece]:
        wanted = draws.between(self.low_retrieved, self.high_retrieved)
        found: dict[Piece, None] = {}
        while len(found) < wanted:
            found[draws.rng.choices(corpus, cum_weights=weights)[0]] = None
        return list(found)

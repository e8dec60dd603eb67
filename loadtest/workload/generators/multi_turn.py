"""People who chat in many turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

from loadtest.workload.draw import Draws
from loadtest.workload.generators.shape import Conversing, Count, Positive, Tokens, says
from loadtest.workload.plan import Session
from loadtest.workload.text import Text


class MultiTurn(Conversing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conversations behind one of a few system prompts: a question, the answer, a pause to read it, the next question.

    Each prompt is the conversation so far and a new question. A conversation ends after its turns, or before a prompt
    that would be longer than `context_tokens`.
    """

    kinds: ClassVar[tuple[str, ...]] = ("chat",)

    rate_per_s: Annotated[Positive, says("conversations that begin per second")] = 1.0
    systems: Annotated[Count, says("different system prompts")] = 4
    system_tokens: Annotated[Tokens, says("length of a system prompt")] = 800
    low_turns: Annotated[Count, says("fewest turns")] = 1
    high_turns: Annotated[Count, says("most turns")] = 16
    question_p50_tokens: Annotated[Tokens, says("question, median")] = 80
    question_p90_tokens: Annotated[Tokens, says("question, 90th percentile: something was pasted")] = 900
    answer_p50_tokens: Annotated[Tokens, says("answer, median")] = 220
    answer_p90_tokens: Annotated[Tokens, says("answer, 90th percentile")] = 700
    pause_p50_s: Annotated[Positive, says("pause before the next question, median")] = 20.0
    pause_p90_s: Annotated[Positive, says("pause, 90th percentile")] = 90.0
    context_tokens: Annotated[Tokens, says("longest prompt")] = 32_000

    def sessions(self, starts: Iterable[float], draws: Draws) -> Iterator[Session]:
        systems = [Text.of([draws.piece(self.system_tokens)]) for _ in range(self.systems)]
        for number, start_s in enumerate(starts):
            yield self.chat(number, start_s, draws.rng.choice(systems), draws)

    def chat(self, number: int, start_s: float, system: Text, draws: Draws) -> Session:
        turns = draws.between(self.low_turns, self.high_turns)
        return Session(f"chat-{number}", start_s, tuple(self.turns(system, turns, draws, "chat", self.context_tokens)))

    def pause_s(self, draws: Draws) -> float:
        return draws.around(self.pause_p50_s, self.pause_p90_s)

"""Traffic whose mix of long prompts and long answers changes while its rate stays the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

from loadtest.workload.draw import Draws
from loadtest.workload.generators.shape import Positive, Shape, Share, Tokens, says
from loadtest.workload.plan import Call, Session
from loadtest.workload.text import Text


class ChangingMix(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Single requests that share nothing: long prompts with short answers, and short prompts with long answers. Phases
    in which most are of the first kind alternate with phases in which most are of the second.

    What a fleet needs changes with each phase: prefill first, then decode. The kind of a call is the phase in which it
    arrives.
    """

    kinds: ClassVar[tuple[str, ...]] = ("prompts", "answers")

    rate_per_s: Annotated[Positive, says("requests per second")] = 5.0
    phase_s: Annotated[Positive, says("length of a phase; the first is of long prompts")] = 120.0
    most: Annotated[Share, says("share of a phase's requests that are of its kind")] = 0.9
    long_prompt_p50_tokens: Annotated[Tokens, says("long prompt, median")] = 6_000
    long_prompt_p90_tokens: Annotated[Tokens, says("long prompt, 90th percentile")] = 12_000
    short_answer_p50_tokens: Annotated[Tokens, says("answer to a long prompt, median")] = 100
    short_answer_p90_tokens: Annotated[Tokens, says("answer to a long prompt, 90th percentile")] = 250
    short_prompt_p50_tokens: Annotated[Tokens, says("short prompt, median")] = 400
    short_prompt_p90_tokens: Annotated[Tokens, says("short prompt, 90th percentile")] = 1_200
    long_answer_p50_tokens: Annotated[Tokens, says("answer to a short prompt, median")] = 1_500
    long_answer_p90_tokens: Annotated[Tokens, says("answer to a short prompt, 90th percentile")] = 4_000

    def sessions(self, starts: Iterable[float], draws: Draws) -> Iterator[Session]:
        """Yield one request per start."""
        for number, start_s in enumerate(starts):
            phase = int(start_s / self.phase_s) % 2
            usual = draws.rng.random() < self.most
            call = self._long_prompt if usual is (phase == 0) else self._long_answer
            yield Session(f"request-{number}", start_s, (call(draws, self.kinds[phase]),))

    def _long_prompt(self, draws: Draws, kind: str) -> Call:
        prompt = draws.tokens(self.long_prompt_p50_tokens, self.long_prompt_p90_tokens)
        answer = draws.tokens(self.short_answer_p50_tokens, self.short_answer_p90_tokens)
        return Call(Text.of([draws.piece(prompt)]), draws.piece(answer), kind=kind)

    def _long_answer(self, draws: Draws, kind: str) -> Call:
        prompt = draws.tokens(self.short_prompt_p50_tokens, self.short_prompt_p90_tokens)
        answer = draws.tokens(self.long_answer_p50_tokens, self.long_answer_p90_tokens)
        return Call(Text.of([draws.piece(prompt)]), draws.piece(answer), kind=kind)

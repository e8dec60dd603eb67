"""Traffic in which no cache helps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

from loadtest.workload.draw import Draws
from loadtest.workload.generators.shape import Positive, Shape, Tokens, says
from loadtest.workload.plan import Call, Session
from loadtest.workload.text import Text


class NoReuse(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Single requests that share nothing: here a rule must lose nothing by its search for prefixes."""

    kinds: ClassVar[tuple[str, ...]] = ("single",)

    rate_per_s: Annotated[Positive, says("requests per second")] = 4.0
    prompt_p50_tokens: Annotated[Tokens, says("prompt, median")] = 1_500
    prompt_p90_tokens: Annotated[Tokens, says("prompt, 90th percentile")] = 8_000
    answer_p50_tokens: Annotated[Tokens, says("answer, median")] = 200
    answer_p90_tokens: Annotated[Tokens, says("answer, 90th percentile")] = 700

    def sessions(self, starts: Iterable[float], draws: Draws) -> Iterator[Session]:
        for number, start_s in enumerate(starts):
            prompt = Text.of([self.drawn_piece("prompt", draws)])
            answer = self.drawn_piece("answer", draws)
            yield Session(f"request-{number}", start_s, (Call(prompt, answer, kind="single"),))

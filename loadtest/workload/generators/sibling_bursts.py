"""The same prompt many times at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

from loadtest.workload.draw import Draws
from loadtest.workload.generators.shape import Count, Positive, Seconds, Shape, Tokens, says
from loadtest.workload.plan import Call, Session
from loadtest.workload.text import Text


class SiblingBursts(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Groups of requests with one and the same new prompt, sent at once or within `spread_s`: best-of-n, voting,
    reinforcement learning. The answers differ, in length too.

    Nothing is cached when the siblings come. A rule that ignores the requests it has just sent makes every worker
    compute the prompt.
    """

    kinds: ClassVar[tuple[str, ...]] = ("sibling",)

    rate_per_s: Annotated[Positive, says("groups per second")] = 0.5
    low_siblings: Annotated[Count, says("fewest requests in a group")] = 4
    high_siblings: Annotated[Count, says("most requests in a group")] = 16
    spread_s: Annotated[Seconds, says("time within which a group's requests come")] = 0.0
    prompt_p50_tokens: Annotated[Tokens, says("prompt, median")] = 3_000
    prompt_p90_tokens: Annotated[Tokens, says("prompt, 90th percentile")] = 9_000
    answer_p50_tokens: Annotated[Tokens, says("answer, median")] = 300
    answer_p90_tokens: Annotated[Tokens, says("answer, 90th percentile")] = 900

    def sessions(self, starts: Iterable[float], draws: Draws) -> Iterator[Session]:
        for number, start_s in enumerate(starts):
            prompt = Text.of([self.drawn_piece("prompt", draws)])
            for sibling in range(draws.between(self.low_siblings, self.high_siblings)):
                at_s = start_s + draws.rng.uniform(0.0, self.spread_s)
                answer = self.drawn_piece("answer", draws)
                yield Session(f"group-{number}-{sibling}", at_s, (Call(prompt, answer, kind="sibling"),))

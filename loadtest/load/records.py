"""One record per request, and what each measure of it means. Records are all that reports are made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import sub

import msgspec

from loadtest.load.seen import Kind, Seen
from loadtest.workload.plan import Call, Session


class Record(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One request; times are seconds from the beginning of the run.

    `intended_s` is when the schedule wanted it sent, `sent_s` when its bytes were written, `chunk_s` the first event
    with choices, and `token_s` every event with tokens from the first text on. `lag_s` is how late the client itself
    was, and `waited_s` how long the request waited for --max-concurrency. `counted` is whether the endpoint reported
    tokens; else `completion_tokens` is the number of `token_s`. `cached_tokens` is None if it was not reported.
    """

    id: str
    kind: str
    turn: int
    intended_s: float
    sent_s: float
    ended_s: float
    lag_s: float = 0.0
    waited_s: float = 0.0
    chunk_s: float | None = None
    answer_s: float | None = None
    token_s: list[float] = []
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    completion_tokens: int = 0
    counted: bool = True
    status: int = 0
    outcome: Kind = Kind.COMPLETE
    error: str = ""

    @property
    def good(self) -> bool:
        return self.outcome is Kind.COMPLETE

    @property
    def ttft_s(self) -> float | None:
        return self.token_s[0] - self.intended_s if self.token_s else None

    @property
    def tpot_s(self) -> float | None:
        if not self.token_s or self.completion_tokens < 2:
            return None
        return (self.token_s[-1] - self.token_s[0]) / (self.completion_tokens - 1)

    @property
    def itls_s(self) -> list[float]:
        return list(map(sub, self.token_s[1:], self.token_s))

    @property
    def e2el_s(self) -> float:
        return self.ended_s - self.intended_s

    @property
    def ntpot_s(self) -> float | None:
        return self.e2el_s / self.completion_tokens if self.completion_tokens else None

    @property
    def values_s(self) -> dict[str, list[float]]:
        """Return the values of each measure; a request that failed has none."""
        if not self.good:
            return {}
        single = {name: measure.of(self) for name, measure in MEASURES.items() if measure.of is not None}
        found = {name: [value] for name, value in single.items() if value is not None}
        return found | {"itl": self.itls_s}


@dataclass(frozen=True, slots=True)
class Answered:
    """What was seen of one call, the `turn`-th of its session, in a run that began at `begin_s` of the loop's clock."""

    session: Session
    turn: int
    kind: str
    seen: Seen
    begin_s: float = 0.0
    lag_s: float = 0.0
    waited_s: float = 0.0

    @property
    def call(self) -> Call:
        return self.session.calls[self.turn - 1]


def record(one: Answered) -> Record:
    """Return the record of an answer, in times of its run."""
    seen, begin_s = one.seen, one.begin_s

    def since(at_s: float | None) -> float | None:
        return None if at_s is None else at_s - begin_s

    return Record(
        id=f"{one.session.id}/{one.turn}",
        kind=one.kind,
        turn=one.turn,
        intended_s=seen.began_s - begin_s,
        sent_s=(seen.sent_s or seen.ended_s) - begin_s,
        ended_s=seen.ended_s - begin_s,
        lag_s=one.lag_s,
        waited_s=one.waited_s,
        chunk_s=since(seen.chunk_s),
        answer_s=since(seen.answer_s),
        token_s=[at_s - begin_s for at_s in seen.stamps_s],
        prompt_tokens=seen.prompt_tokens,
        cached_tokens=seen.cached_tokens if seen.says_cached else None,
        completion_tokens=seen.completion_tokens or len(seen.stamps_s),
        counted=seen.completion_tokens > 0,
        status=seen.status,
        outcome=seen.kind,
        error=seen.error or "",
    )


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure's name in tables, its definition, and its value of one record; None for ITL, which has several."""

    label: str
    definition: str
    of: Callable[[Record], float | None] | None = None


MEASURES: Mapping[str, Measure] = {
    "ttft": Measure(
        "TTFT",
        "from the intended time of sending to the first event with generated text (reasoning and tool calls included);"
        " an event with the role alone does not count",
        lambda one: one.ttft_s,
    ),
    "ttfc": Measure(
        "TTFC",
        "from the time of sending to the first event with choices, the role alone included:"
        " the TTFT of `vllm bench serve`",
        lambda one: None if one.chunk_s is None else one.chunk_s - one.sent_s,
    ),
    "ttfo": Measure(
        "TTFO",
        "from the intended time to the first text of the answer, after the reasoning",
        lambda one: None if one.answer_s is None else one.answer_s - one.intended_s,
    ),
    "tpot": Measure(
        "TPOT", "(last token - first text) / (tokens - 1) of a request with two tokens or more", lambda one: one.tpot_s
    ),
    "itl": Measure(
        "ITL", "gaps between events with tokens, of all requests together; an event may bring several tokens"
    ),
    "e2el": Measure("E2EL", "from the intended time to the end of the stream", lambda one: one.e2el_s),
    "ntpot": Measure(
        "NTPOT", "E2EL / tokens of the answer (normalised time per output token)", lambda one: one.ntpot_s
    ),
    "wait": Measure("wait", "from the intended time to the time of sending", lambda one: one.sent_s - one.intended_s),
}

Goals = Mapping[str, float]
"""Limits in seconds by measure."""


def meets(values_s: Mapping[str, Sequence[float]], goals: Goals) -> bool:
    """Return whether a complete answer with these values is in the goodput; errors and refusals never are.

    TPOT of a single token counts as 0, as in `vllm bench serve`.
    """
    return all(max(values_s.get(name) or (0.0,)) <= limit_s for name, limit_s in goals.items())

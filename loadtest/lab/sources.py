"""From a trace or generator to what a cell is asked: a seed's window, and what is known of each call beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from loadtest.lab.cell import GENERATOR
from loadtest.lab.fold import Asked
from loadtest.workload.plan import Call, Plan
from loadtest.workload.reuse import SeenTexts
from loadtest.workload.source import Source, parse_source

PLANS_KEPT = 4


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a seed stands for. `asked` goes by the names that the simulator gives calls; sessions may start until
    `length_s`."""

    plan: Plan
    asked: dict[str, Asked]
    length_s: float

    def faster(self, rate: float) -> Drawn:
        """The same sessions, arriving `rate` times as fast."""
        sessions = tuple(replace(session, start_s=session.start_s / rate) for session in self.plan.sessions)
        return Drawn(replace(self.plan, sessions=sessions), self.asked, self.length_s / rate)


def drawn(trace: str, seed: int, window_s: float, rate: float, block_tokens: int | None) -> Drawn:
    """A seed's window, at `rate` times the source's own rate of arrivals.

    Of a trace, `window_s` of its own time: the same calls at every rate, sooner or later. Of a generator, as much as
    fills `window_s` at that rate.

    Raises:
        WorkloadError: there is no such trace or generator, or it cannot be read.
    """
    if trace.startswith(GENERATOR):
        return _drawn(trace, seed, window_s, rate, block_tokens)
    return _drawn(trace, seed, window_s, 1.0, block_tokens).faster(rate)


def source(trace: str) -> Source:
    """As `parse_source` has it; read once."""
    return _source(trace)


_source = lru_cache(PLANS_KEPT)(parse_source)


@lru_cache(PLANS_KEPT)
def _drawn(trace: str, seed: int, window_s: float, rate: float, block_tokens: int | None) -> Drawn:
    plan = _source(trace).draw(seed, window_s, rate)
    return Drawn(plan, dict(_asked(plan, block_tokens or plan.block_tokens)), plan.duration_s)


def _asked(plan: Plan, block_tokens: int) -> Iterator[tuple[str, Asked]]:
    """Each call's name with what an endless cache would have of it, calls arriving as if all answers were immediate."""
    seen = SeenTexts()
    for name, call in _by_arrival(plan):
        shared = min(seen.shared_tokens(call.prompt), call.prompt.tokens - 1)
        yield name, Asked(call.kind, shared // block_tokens * block_tokens)
        id_, tokens = call.answer
        seen.add(call.prompt.plus((id_, max(0, tokens - 1))))


def _by_arrival(plan: Plan) -> list[tuple[str, Call]]:
    timed: list[tuple[float, str, Call]] = []
    for session in plan.sessions:
        at_s = session.start_s
        for number, call in enumerate(session.calls):
            at_s += call.pause_s
            timed.append((at_s, f"{session.id}/{number}", call))
    return [(name, call) for _, name, call in sorted(timed, key=lambda entry: entry[:2])]

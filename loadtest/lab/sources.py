"""From a trace or generator to the requests of a cell: a seed's window, and the facts known of each call beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from loadtest.lab.aggregate import Asked
from loadtest.workload.plan import Plan, reusable_by_call
from loadtest.workload.source import parse_source
from loadtest.workload.trace import Trace

PLANS_KEPT = 4


@dataclass(frozen=True, slots=True)
class Drawn:
    """The requests of one seed. `asked` is keyed by the simulator's names of calls. Sessions start until `length_s`."""

    plan: Plan
    asked: dict[str, Asked]
    length_s: float

    def faster(self, rate: float) -> Drawn:
        """Return the same sessions, arriving `rate` times as fast."""
        sessions = tuple(replace(session, start_s=session.start_s / rate) for session in self.plan.sessions)
        return Drawn(replace(self.plan, sessions=sessions), self.asked, self.length_s / rate)

    def by_class(self, classes: Mapping[str, str]) -> Drawn:
        """Return the same requests, measured by the class of their session in place of their kind."""
        asked = {
            f"{session.id}/{number}": replace(self.asked[f"{session.id}/{number}"], kind=classes[session.id])
            for session in self.plan.sessions
            for number in range(len(session.calls))
        }
        return replace(self, asked=asked)


def drawn(trace: str, seed: int, window_s: float, rate: float, block_tokens: int | None) -> Drawn:
    """Draw a seed's window, at `rate` times the source's own rate of arrivals.

    If the rows of a trace are independent calls, the window is `window_s` of the trace's own time: the same calls at
    every rate, sooner or later. A generator, or a trace of sessions, gives as many calls as fill `window_s` at that
    rate. Its pauses do not shrink, so with the same calls the sessions would get less far at a higher rate.

    Raises:
        WorkloadError: there is no such trace or generator, or it cannot be read.
    """
    source = _source(trace)
    if isinstance(source, Trace) and not source.schema.closed_loop:
        return _drawn(trace, seed, window_s, 1.0, block_tokens).faster(rate)
    return _drawn(trace, seed, window_s, rate, block_tokens)


_source = lru_cache(PLANS_KEPT)(parse_source)


@lru_cache(PLANS_KEPT)
def _drawn(trace: str, seed: int, window_s: float, rate: float, block_tokens: int | None) -> Drawn:
    plan = _source(trace).draw(seed, window_s, rate)
    return Drawn(plan, dict(_asked(plan, block_tokens or plan.block_tokens)), plan.duration_s)


def _asked(plan: Plan, block_tokens: int) -> Iterator[tuple[str, Asked]]:
    """Yield each call's name, and the tokens that an endless cache would hold: at most all but the prompt's last."""
    for session, number, reusable in reusable_by_call(plan.sessions, block_tokens):
        call = session.calls[number]
        usable = (call.prompt.tokens - 1) // block_tokens * block_tokens
        yield f"{session.id}/{number}", Asked(call.kind, min(reusable, usable))

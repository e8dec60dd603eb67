"""The base of every generator: a rate, bursts, and sessions that begin one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from math import inf
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from loadtest.workload.draw import Draws, stream
from loadtest.workload.generators.arrivals import Bursts, arrivals
from loadtest.workload.plan import Call, Session, within
from loadtest.workload.text import Piece, Text

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Tokens = Annotated[int, Meta(ge=1, le=10_000_000)]
Seconds = Annotated[float, Meta(ge=0, le=1_000_000)]
Positive = Annotated[float, Meta(gt=0, le=1_000_000)]
Share = Annotated[float, Meta(ge=0, le=1)]


def says(description: str) -> Meta:
    """Declare the description of a parameter, for the listings."""
    return Meta(description=description)


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of one kind of traffic, which a subclass's docstring describes.

    `low_x` and `high_x` are the ends of a uniform range. `x_p50` and `x_p90` are the median and the 90th percentile of
    a log-normal distribution, which is cut at ten times the latter.
    """

    kinds: ClassVar[tuple[str, ...]] = ()
    """The kinds of its calls, by which measures are split."""

    rate_per_s: Annotated[Positive, says("sessions that begin per second, in the long run")] = 1.0
    starts: Annotated[Count, says("times at which sessions begin, at most; the run is quiet after the last one")] = (
        1_000_000
    )
    burst: Annotated[
        float, Meta(ge=1, le=1_000), says("rate in bursts over the mean rate; 1: no bursts, a Poisson process")
    ] = 1.0
    burst_share: Annotated[float, Meta(gt=0, lt=1), says("share of the time in bursts")] = 0.1
    burst_s: Annotated[Positive, says("mean length of a burst")] = 20.0

    def __post_init__(self) -> None:
        if self.burst > 1.0 and self.burst * self.burst_share > 1.0 + 1e-9:
            raise ValueError(f"burst times burst_share is {self.burst * self.burst_share:g}, more than 1")
        for low, high in self._pairs():
            if getattr(self, low) > getattr(self, high):
                raise ValueError(f"{low} is {getattr(self, low):g}, more than {high}, {getattr(self, high):g}")

    def sessions(self, starts: Iterable[float], draws: Draws) -> Iterator[Session]:
        """Yield one or more sessions per start."""
        raise NotImplementedError

    def drawn(self, seed: int, length_s: float) -> Iterator[Session]:
        """Yield the sessions that begin in [0, length_s).

        Times and content come from separate streams, so that another rate changes only the times.
        """
        return self.sessions(self._starts(seed, 0.0, length_s), Draws(stream(seed, "content")))

    def drawn_piece(self, part: str, draws: Draws) -> Piece:
        """Return new text with a length drawn from the parameters ``PART_p50_tokens`` and ``PART_p90_tokens``."""
        return draws.piece(draws.tokens(getattr(self, f"{part}_p50_tokens"), getattr(self, f"{part}_p90_tokens")))

    def _starts(self, seed: int, begin_s: float, end_s: float) -> Iterator[float]:
        bursts = Bursts(self.burst, self.burst_share, self.burst_s)
        return islice(arrivals(stream(seed, "arrivals"), self.rate_per_s, bursts, begin_s, end_s), self.starts)

    def _pairs(self) -> Iterator[tuple[str, str]]:
        for name in self.__struct_fields__:
            if name.startswith("low_"):
                yield name, name.replace("low_", "high_")
            elif "_p50" in name:
                yield name, name.replace("_p50", "_p90")


class Conversing(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shape whose run does not begin with an empty fleet: sessions that began before the run continue in it.

    Their progress is computed as if every answer were immediate. None of their context is cached yet, so their first
    calls are spread over `ramp_s`. With `history_s` 0 there are no such sessions. Calls that would come after the run
    even with immediate answers are left out.
    """

    history_s: Annotated[Seconds, says("sessions begin up to this time before the run; 0: none")] = 600.0
    ramp_s: Annotated[Seconds, says("time within which earlier sessions continue after the start")] = 60.0

    part: ClassVar[str] = "question"
    """What a turn adds to the conversation."""

    def turns(self, said: Text, turns: int, draws: Draws, kind: str, context_tokens: float = inf) -> Iterator[Call]:
        """Yield calls, each with the conversation so far and something new; end before a longer prompt."""
        for turn in range(turns):
            prompt = said.plus(self.drawn_piece(self.part, draws))
            if turn and prompt.tokens > context_tokens:
                return
            answer = self.drawn_piece("answer", draws)
            yield Call(prompt, answer, self.pause_s(draws) if turn else 0.0, kind=kind)
            said = prompt.plus(answer)

    def pause_s(self, draws: Draws) -> float:
        """Draw the time from an answer to the next call."""
        raise NotImplementedError

    def drawn(self, seed: int, length_s: float) -> Iterator[Session]:
        """Return sessions that begin in [0, length_s), and earlier ones that continue into it."""
        ramp = stream(seed, "ramp")
        whole = self.sessions(self._starts(seed, -self.history_s, length_s), Draws(stream(seed, "content")))
        for session in whole:
            rest = within(session, length_s)
            if rest is not None:
                underway = session.start_s < 0.0
                yield replace(rest, start_s=rest.start_s + ramp.uniform(0.0, self.ramp_s)) if underway else rest

"""The arguments and results of a measure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """Duration and load of the measures.

    `connections` is the number of clients in the closed loop, `memory_connections` that of the memory measure.
    """

    window_s: float = 1.5
    connections: int = 32
    memory_connections: int = 250


@dataclass(slots=True)
class Subject:
    """A proxy under test, its stand-in, and results of earlier measures in the round.

    `capacity` is the proxy's closed-loop rate of 2 kB requests per second. `tokens_per_s` is the most that its streams
    can deliver, or None if no measure has exceeded that. `lines` are header lines of each request.
    `program` starts the proxy if it is a Warmroute.
    """

    name: str
    url: str
    pid: int
    standin_url: str
    seed: int
    capacity: float | None = None
    tokens_per_s: float | None = None
    lines: str = ""
    program: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure of one round: `value` in the figure's unit, over `count` requests, tokens or connections.

    `rate` is the load meanwhile: requests or tokens per second. A sample with `errors` does not count. `skipped` is the
    reason why the figure was not measured.
    """

    value: float
    count: int
    rate: float
    errors: int
    reasons: tuple[str, ...] = ()
    skipped: str = ""

    @property
    def counts(self) -> bool:
        """Whether the figure was measured without errors."""
        return not self.errors and not self.skipped


Measure = Callable[[Subject, Setting], Awaitable[Mapping[str, Sample]]]

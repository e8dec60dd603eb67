"""What a measure is given, and what it returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """How long and with how much load to measure.

    `connections` is the number of clients in the closed loop, `memory_connections` that of the memory measure.
    """

    window_s: float = 1.5
    connections: int = 32
    memory_connections: int = 250


@dataclass(slots=True)
class Subject:
    """A proxy under test, the stand-in behind it, and what earlier measures of the round found out.

    `capacity` is its closed-loop rate of 2 kB requests per second, `tokens_per_s` what it passes
    of streams at most, None while it has always kept up.
    """

    name: str
    url: str
    pid: int
    standin_url: str
    seed: int
    capacity: float | None = None
    tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure of one round: `value` in the figure's unit, over `count` requests, tokens or connections.

    `rate` is the load during it: requests or tokens per second. With `errors` it does not count. `skipped` says why it
    was not taken at all.
    """

    value: float
    count: int
    rate: float
    errors: int
    reasons: tuple[str, ...] = ()
    skipped: str = ""

    @property
    def counts(self) -> bool:
        """It was taken, and nothing failed."""
        return not self.errors and not self.skipped


Measure = Callable[[Subject, Setting], Awaitable[Mapping[str, Sample]]]

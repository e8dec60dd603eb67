"""The arguments and results of a measure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from loadtest.bench.caller import Failures
from loadtest.bench.proxies.entrant import Proxy


@dataclass(frozen=True, slots=True)
class Setting:
    """Duration and load of the measures.

    `connections` is the number of clients in the closed loop, `memory_connections` that of the memory measure.
    """

    window_s: float = 1.5
    connections: int = 32
    memory_connections: int = 250


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure of one round: `value` in the figure's unit.

    `rate` is the load meanwhile: requests or tokens per second. A sample with `errors` does not count. `skipped` is the
    reason why the figure was not measured.
    """

    value: float = 0.0
    rate: float = 0.0
    errors: int = 0
    reasons: tuple[str, ...] = ()
    skipped: str = ""

    @classmethod
    def of(cls, value: float, rate: float, *failures: Failures) -> Sample:
        """Return a sample with the failures of all its requests."""
        reasons = tuple(reason for one in failures for reason in one.reasons)
        return cls(value, rate, sum(one.errors for one in failures), reasons)

    @property
    def counts(self) -> bool:
        """Whether the figure was measured without errors."""
        return not self.errors and not self.skipped


Samples = Mapping[str, Sample]
"""By figure."""
Measure = Callable[[Proxy, Setting], Awaitable[Samples]]

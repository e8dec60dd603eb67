"""Compare two sides of a scenario, or a recording and its replay, by figures that have limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from loadtest.fidelity.differences import Cause, Difference
from loadtest.fidelity.outcome import Played
from loadtest.report.summary import percentile

QUANTILES = (0.5, 0.9)
CACHED_BAR = 0.01
"""Limit for the sum of cached tokens under load. With one request in flight every request has to agree."""
TIME_BAR = 0.10


class Timed(Protocol):
    """An object with the two times that are compared, in seconds."""

    @property
    def ttft_s(self) -> float: ...

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first."""


@dataclass(frozen=True, slots=True)
class Quantile:
    """One quantile of one time on both sides, in milliseconds."""

    measure: str
    share: float
    reference_ms: float
    modelled_ms: float

    @property
    def error(self) -> float:
        """Error of the model as a share of the reference."""
        return self.modelled_ms / self.reference_ms - 1.0 if self.reference_ms else 0.0

    @property
    def within_bar(self) -> bool:
        """Whether the error is at most `TIME_BAR` in either direction."""
        return abs(self.error) <= TIME_BAR


def quantiles(reference: Sequence[Timed], modelled: Sequence[Timed], *, less_s: float = 0.0) -> tuple[Quantile, ...]:
    """Return TTFT and TPOT at `QUANTILES`; `less_s` is subtracted from every reference TTFT."""
    times = (
        ("TTFT", [max(0.0, one.ttft_s - less_s) for one in reference], [one.ttft_s for one in modelled]),
        ("TPOT", [one.tpot_s for one in reference], [one.tpot_s for one in modelled]),
    )
    return tuple(
        Quantile(measure, share, _quantile_ms(theirs, share), _quantile_ms(ours, share))
        for measure, theirs, ours in times
        for share in QUANTILES
    )


def missed(rows: Sequence[Quantile]) -> list[str]:
    """Return one sentence for each quantile that exceeds the limit."""
    return [f"{row.measure} p{row.share * 100:.0f} is off by {row.error:+.1%}" for row in rows if not row.within_bar]


def _quantile_ms(values_s: Sequence[float | None], share: float) -> float:
    return percentile([value for value in values_s if value is not None], share) * 1e3


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Sums of cached tokens on both sides, and every request in which they differ."""

    requests: int
    prompt_tokens: int
    modelled: int
    served: int
    differences: tuple[Difference, ...]

    @property
    def error(self) -> float:
        """Error of the model's sum, as a share of the served sum."""
        return self.modelled / self.served - 1.0 if self.served else float(self.modelled > 0)

    @property
    def causes(self) -> Counter[Cause]:
        """Number of differing requests by cause."""
        return Counter(difference.cause for difference in self.differences)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One scenario with one scheduling mode. `times` exclude the front end's time, `raw_times` include it."""

    scenario: str
    one_at_a_time: bool
    async_scheduling: bool
    cached: CachedTokens
    times: tuple[Quantile, ...]
    raw_times: tuple[Quantile, ...]
    preemptions: tuple[int, int]
    """Modelled, served."""
    evictions: tuple[int, int]
    """In blocks: modelled, served."""

    @property
    def failures(self) -> list[str]:
        """Return the missed limits, one sentence each."""
        found = []
        if self.one_at_a_time and self.cached.differences:
            found.append(f"cached tokens differ for {len(self.cached.differences)} of {self.cached.requests} requests")
        if abs(self.cached.error) > CACHED_BAR:
            found.append(f"the sum of cached tokens is off by {self.cached.error:+.1%}")
        if unexplained := self.cached.causes[Cause.OTHER]:
            found.append(f"{unexplained} requests differ without a known cause")
        return found + missed(self.times)


def cached_tokens(modelled: Played, served: Played, found: Sequence[Difference]) -> CachedTokens:
    """Return the sums together with the differences already found."""
    return CachedTokens(
        requests=len(served.outcomes),
        prompt_tokens=sum(outcome.prompt_tokens for outcome in served.outcomes),
        modelled=sum(outcome.cached_tokens for outcome in modelled.outcomes),
        served=sum(outcome.cached_tokens for outcome in served.outcomes),
        differences=tuple(found),
    )

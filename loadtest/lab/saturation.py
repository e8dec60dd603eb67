"""Load 1.0: the rate at which a rule's 90th percentile of the time to first token crosses the service level.

A bisection finds it per trace and fleet, over the mean of a few seeds. Each try is a cell like any other, and stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean

from loadtest.lab.cell import Cell
from loadtest.lab.store import Result

RULE = "lpwl"
SEEDS = 3
PRECISION = 0.02
"""Relative precision of the rate."""
LEAST_CALLS = 10
"""Least number of calls per seed: a percentile of fewer says nothing."""
SLOWEST, FASTEST = 2.0**-6, 2.0**12
"""The search covers these multiples of the trace's own rate. A recorded trace has the same calls at every rate, so that
lower ones would spread them over weeks of virtual time."""

Run = Callable[[list[Cell]], list[Result]]


class SaturationError(Exception):
    """No rate is load 1.0; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Saturation:
    """`rate` is a factor on the trace's own arrivals; `arrivals_per_s` is the resulting number of calls per second."""

    policy: str
    rate: float
    arrivals_per_s: float


@dataclass(frozen=True, slots=True)
class _Try:
    rate: float
    ttft_p90_ms: float
    arrivals_per_s: float


def saturation(like: Cell, policy: str, run: Run, seeds: int = SEEDS) -> Saturation:
    """Find the rate at which `policy` saturates on the trace, fleet and models of `like`.

    Raises:
        SaturationError: the policy saturates at no rate, or at every rate.
    """
    base = replace(like, policy=policy, load=None)
    limit_ms = like.setting.slo.ttft_ms

    def at(rate: float) -> _Try:
        results = run([replace(base, rate=rate, seed=seed) for seed in range(seeds)])
        _check(results, base, rate)
        return _Try(
            rate,
            fmean(result.measures.all.ttft_p90_ms for result in results),
            fmean(result.measures.arrivals_per_s for result in results),
        )

    low, high = _bracket(at, limit_ms, like.trace)
    while high.rate > low.rate * (1.0 + PRECISION):
        middle = at((low.rate * high.rate) ** 0.5)
        low, high = (low, middle) if middle.ttft_p90_ms > limit_ms else (middle, high)
    return Saturation(policy, low.rate, low.arrivals_per_s)


def _check(results: list[Result], base: Cell, rate: float) -> None:
    """Refuse a try with too few answered calls.

    Rejected calls have no TTFT; without this check an overloaded fleet would seem to keep up.
    """
    rejected = sum(result.measures.all.rejected for result in results)
    calls = sum(result.measures.all.calls for result in results) - rejected
    if calls < LEAST_CALLS * len(results):
        beside = f", beside {rejected} that were turned away," if rejected else ""
        raise SaturationError(
            f"{base.trace}: at {rate:g} times its own rate only {calls} calls{beside} are left to measure, too few to"
            f" say where {base.policy}'s p90 TTFT crosses --slo's {base.setting.slo.ttft_ms:g} ms;"
            " make --window-s longer, or take a laxer --slo or more --workers"
            + (" or more --kv-tokens" if rejected else "")
        )


def _bracket(at: Callable[[float], _Try], limit_ms: float, trace: str) -> tuple[_Try, _Try]:
    """Return the last rate that holds and the first that does not, a factor of two apart."""
    one = least = at(1.0)
    holds = one.ttft_p90_ms <= limit_ms
    while SLOWEST < one.rate < FASTEST:
        other = at(one.rate * 2.0 if holds else one.rate / 2.0)
        if (other.arrivals_per_s, other.ttft_p90_ms) == (one.arrivals_per_s, one.ttft_p90_ms):
            raise SaturationError(
                f"{trace}: the same is asked at {other.rate:g} times its own rate as at {one.rate:g}: its sessions"
                " arrive all at once, and go on when they are answered, so there is no load to set; give them other"
                " times of arrival"
            )
        if (other.ttft_p90_ms <= limit_ms) is not holds:
            return (one, other) if holds else (other, one)
        least = min(least, other, key=lambda tried: tried.ttft_p90_ms)
        one = other
    if not holds:
        raise SaturationError(
            f"{trace}: the 90th percentile of TTFT is above --slo's {limit_ms:g} ms at every rate down to {one.rate:g}"
            f" times the trace's own; the least seen is {least.ttft_p90_ms:.0f} ms, at {least.rate:g} times it;"
            " take a faster --profile or a laxer --slo"
        )
    raise SaturationError(
        f"{trace}: even at {one.rate:g} times its own rate the 90th percentile of TTFT is {one.ttft_p90_ms:.0f} ms,"
        f" below --slo's {limit_ms:g} ms; take fewer --workers or a stricter --slo"
    )

"""The bars, and whether the findings meet them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtest.replicas.cases import Played, Spread
from loadtest.replicas.exchange import Cost
from loadtest.replicas.faults import Healing
from loadtest.replicas.findings import Findings

EXACT_LOST = 0.02
APPROXIMATE_LOST = 0.05
UNEVENNESS = 1.10
REDIS_CPU = 0.10
REPLICA_CPU = 0.06
SHARED_S = 5.0
REGISTERED_S = 15.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar where it was measured."""

    what: str
    where: str
    measured: str
    limit: str
    met: bool


def bars(findings: Findings) -> Iterator[Bar]:
    """Yield the bars of the parts that have been measured."""
    for place, played, one in findings.comparisons():
        yield from _cached(place, played, one)
    for place, played, one in findings.comparisons():
        yield from _balance(place, played, one)
    for shared, costs in exchanges(findings).items():
        yield from _exchange(shared, costs)
    for healing in findings.faults:
        yield from _healing(healing)


def _where(place: str, played: Played) -> str:
    return f"{place}: {played.case.gateways} gateways"


def _cached(place: str, played: Played, one: Played) -> Iterator[Bar]:
    """Exact views are judged without Redis, and approximate views with it."""
    if played.case.events == played.case.redis:
        return
    limit = EXACT_LOST if played.case.events else APPROXIMATE_LOST
    over = "over Redis" if played.case.redis else "without Redis"
    lost = played.lost(one)
    yield Bar(
        f"cached share lost, {played.case.views} views {over}",
        _where(place, played),
        lost.text(".3f"),
        f"{limit:g}",
        lost.median <= limit,
    )


def _balance(place: str, played: Played, one: Played) -> Iterator[Bar]:
    if played.case.redis:
        ratio = played.unevenness(one)
        what = f"busiest worker over the mean, over that of one gateway, {played.case.views} views over Redis"
        yield Bar(what, _where(place, played), f"{ratio:.2f}", f"{UNEVENNESS:g}", ratio <= UNEVENNESS)


def exchanges(findings: Findings) -> dict[str, list[Cost]]:
    """Return the measurements of the exchange by what is shared."""
    found: dict[str, list[Cost]] = {}
    for cost in findings.exchange:
        shared = f"load, and placements of {cost.new_blocks} new blocks" if cost.new_blocks else "load alone"
        found.setdefault(shared, []).append(cost)
    return found


def _exchange(shared: str, costs: Sequence[Cost]) -> Iterator[Bar]:
    where = f"exchange: {len(costs[0].replicas)} replicas, {costs[0].decisions_per_s:,.0f} decisions/s, {shared}"
    for what, values, limit in (
        ("CPU of Redis, of a core", [cost.redis for cost in costs], REDIS_CPU),
        ("CPU of a replica, of a core", [cost.replica for cost in costs], REPLICA_CPU),
    ):
        spread = Spread.of(values)
        yield Bar(what, where, spread.text(".1%"), f"{limit:.0%}", spread.median <= limit)
    wrong = sum(cost.wrong for cost in costs)
    yield Bar("workers whose load by the others is wrong at the end", where, str(wrong), "0", wrong == 0)


def _healing(healing: Healing) -> Iterator[Bar]:
    where = f"Redis {healing.fault}"
    failed = len(healing.failures)
    yield Bar("failed requests", where, f"{failed} of {healing.requests}", "0", failed == 0)
    for what, took_s, limit_s in (
        ("time until load is shared again", healing.shared_s, SHARED_S),
        ("time until all are registered again", healing.registered_s, REGISTERED_S),
    ):
        yield Bar(what, where, f"{took_s:.1f} s", f"{limit_s:g} s", took_s <= limit_s)

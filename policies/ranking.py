"""Rank a fleet by a cost, or by several keys in order.

A rule is written over facts. A fact is an array or list of one number per candidate in the fleet's order, or a function
that returns one, such as ``lambda of: of.queued_tokens + of.uncached_tokens``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from policies.lazy_terms import LazyTerms
from policies.view import Column, Decision, FleetView, WorkerId

FactOf: TypeAlias = Callable[[FleetView], Any]
Fact: TypeAlias = FactOf | Sequence[float] | Column
Terms: TypeAlias = Mapping[str, Fact | float]
"""The named parts of a cost. A number applies to every candidate."""


def by_cost(fleet: FleetView, cost: Fact, reason: str, unit: str, terms: Terms, ties: Sequence[Fact] = ()) -> Decision:
    costs = values(fleet, cost)
    order = _order([costs, *[values(fleet, tie) for tie in ties]])
    return Decision(ids_at(fleet, order), reason, tuple(costs[order].tolist()), unit, fact_terms(fleet, terms))


def by_keys(fleet: FleetView, keys: Sequence[Fact], reason: str, terms: Terms) -> Decision:
    """Rank by lowest first key, then by the next ones, then in the fleet's order. Such a decision has no cost."""
    return Decision(ids_at(fleet, ordered(fleet, keys)), reason, terms=fact_terms(fleet, terms))


def ordered(fleet: FleetView, keys: Sequence[Fact]) -> list[int]:
    return _order([values(fleet, key) for key in keys])


def ids_at(fleet: FleetView, order: Iterable[int]) -> tuple[WorkerId, ...]:
    ids = fleet.ids
    return tuple([ids[place] for place in order])


def values(fleet: FleetView, fact: Fact | float) -> Column:
    found = np.asarray(fact(fleet) if callable(fact) else fact, np.float64)
    return found if found.ndim else np.broadcast_to(found, len(fleet))


def _order(keys: Sequence[Column]) -> list[int]:
    order: list[int] = np.lexsort(keys[::-1]).tolist()
    return order


def fact_terms(fleet: FleetView, terms: Terms) -> Mapping[WorkerId, Mapping[str, float]]:
    if not terms:
        return {}
    return LazyTerms(fleet, lambda place: {name: float(values(fleet, fact)[place]) for name, fact in terms.items()})


# Counts over a fleet. `among` is a fact that selects at least one candidate.


def counts(fleet: FleetView, count: FactOf) -> list[int]:
    return values(fleet, count).astype(np.int64).tolist()  # type: ignore[no-any-return]


def least(fleet: FleetView, count: FactOf, among: FactOf | None = None) -> int:
    return int((count(fleet) if among is None else count(fleet)[among(fleet)]).min())


def most(fleet: FleetView, count: FactOf) -> int:
    return int(count(fleet).max())


def total(fleet: FleetView, count: FactOf) -> int:
    return int(count(fleet).sum())


# Facts that most rules use.


def cached_tokens(of: FleetView) -> Column:
    return of.cached_tokens


def uncached_tokens(of: FleetView) -> Column:
    return of.uncached_tokens


def queued_tokens(of: FleetView) -> Column:
    return of.queued_tokens


def running_requests(of: FleetView) -> Column:
    return of.running_requests


def prefill_work(of: FleetView) -> Column:
    """Return queued and own uncached tokens: P + u."""
    return of.queued_tokens + of.uncached_tokens

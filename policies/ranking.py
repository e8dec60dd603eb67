"""Rank a fleet by a cost, or by several keys in order.

A rule is written over facts. A fact is an array or list of one number per candidate, or a function such as
``lambda of: of.queued_tokens + of.uncached_tokens``. `WorkerView` and `FleetView` have the same names, so one function
serves both: it returns a number for one worker, and an array for the fleet. Small fleets arrive as views
(`FleetView.by_row`), for which a loop costs less than arrays; large fleets arrive as arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from policies.lazy_terms import LazyTerms
from policies.view import Column, Decision, FleetView, WorkerId, WorkerView

Facts: TypeAlias = WorkerView | FleetView
Value: TypeAlias = Any
"""A number, or an array with one number per candidate."""
FactOf: TypeAlias = Callable[[Facts], Value]
Fact: TypeAlias = FactOf | Sequence[float] | Column
"""Sequences and arrays are in the fleet's order."""
Terms: TypeAlias = Mapping[str, Fact | float]
"""The named parts of a cost. A number applies to every candidate."""


def by_cost(fleet: FleetView, cost: Fact, reason: str, unit: str, terms: Terms, ties: Sequence[Fact] = ()) -> Decision:
    costs = values(fleet, cost)
    order = _order(fleet, [costs, *[values(fleet, tie) for tie in ties]])
    in_order = costs[order].tolist() if isinstance(costs, np.ndarray) else [float(costs[place]) for place in order]
    return Decision(ids_at(fleet, order), reason, tuple(in_order), unit, view_terms(fleet, terms))


def by_keys(fleet: FleetView, keys: Sequence[Fact], reason: str, terms: Terms) -> Decision:
    """Rank by lowest first key, then by the next ones, then in the fleet's order. Such a decision has no cost."""
    return Decision(ids_at(fleet, places(fleet, keys)), reason, terms=view_terms(fleet, terms))


def places(fleet: FleetView, keys: Sequence[Fact]) -> list[int]:
    return _order(fleet, [values(fleet, key) for key in keys])


def ids_at(fleet: FleetView, order: Iterable[int]) -> tuple[WorkerId, ...]:
    if fleet.by_row:
        workers = fleet.workers
        return tuple([workers[place].id for place in order])
    ids = fleet.ids
    return tuple([ids[place] for place in order])


def values(fleet: FleetView, fact: Fact) -> Any:
    """Return a fact by place: a list while the fleet consists of views and no array is given, else an array."""
    if isinstance(fact, np.ndarray):
        return fact
    if fleet.by_row:
        return [fact(view) for view in fleet.workers] if callable(fact) else fact
    values = np.asarray(fact(fleet) if callable(fact) else fact, np.float64)
    return values if values.ndim else np.broadcast_to(values, len(fleet))


def _order(fleet: FleetView, keys: Sequence[Any]) -> list[int]:
    if np.ndarray not in [type(key) for key in keys]:
        return [entry[-1] for entry in sorted(zip(*keys, range(len(fleet)), strict=True))]
    order: list[int] = np.lexsort(keys[::-1]).tolist()
    return order


def view_terms(fleet: FleetView, terms: Terms) -> Mapping[WorkerId, Mapping[str, float]]:
    return LazyTerms(fleet, lambda place: _terms_at(fleet, place, terms)) if terms else {}


def _terms_at(fleet: FleetView, place: int, terms: Terms) -> Mapping[str, float]:
    view, found = fleet.worker(place), {}
    for name, fact in terms.items():
        if callable(fact):
            found[name] = fact(view)
        else:
            value = fact if isinstance(fact, (int, float)) else fact[place]
            found[name] = value.item() if isinstance(value, np.generic) else value
    return found


# Arithmetic for facts: of numbers for one worker, of arrays for the fleet.


def where(condition: Value, then: Value, otherwise: Value) -> Value:
    if isinstance(condition, np.ndarray):
        return np.where(condition, then, otherwise)
    return then if condition else otherwise


def at_least(value: Value, bound: float) -> Value:
    return np.maximum(bound, value) if isinstance(value, np.ndarray) else max(bound, value)


def at_most(value: Value, bound: float) -> Value:
    return np.minimum(bound, value) if isinstance(value, np.ndarray) else min(bound, value)


def ratio(value: Value, base: Value) -> Value:
    if isinstance(base, np.ndarray):
        return np.divide(value, base, out=np.zeros(len(base)), where=base != 0.0)
    return value / base if base else 0.0


# Counts over a fleet. `among` is a fact that selects at least one candidate.


def counts(fleet: FleetView, count: FactOf) -> list[int]:
    if fleet.by_row:
        return [count(view) for view in fleet.workers]
    found: list[int] = count(fleet).astype(np.int64).tolist()
    return found


def least(fleet: FleetView, count: FactOf, among: FactOf | None = None) -> int:
    if fleet.by_row:
        return int(min([count(view) for view in fleet.workers if among is None or among(view)]))
    return int((count(fleet) if among is None else count(fleet)[among(fleet)]).min())


def most(fleet: FleetView, count: FactOf) -> int:
    return int(max([count(view) for view in fleet.workers]) if fleet.by_row else count(fleet).max())


def total(fleet: FleetView, count: FactOf) -> int:
    return int(sum([count(view) for view in fleet.workers]) if fleet.by_row else count(fleet).sum())


# Facts that most rules use.


def cached_tokens(of: Facts) -> Value:
    return of.cached_tokens


def uncached_tokens(of: Facts) -> Value:
    return of.uncached_tokens


def queued_tokens(of: Facts) -> Value:
    return of.queued_tokens


def running_requests(of: Facts) -> Value:
    return of.running_requests


def prefill_work(of: Facts) -> Value:
    """Return queued and own uncached tokens: P + u."""
    return of.queued_tokens + of.uncached_tokens

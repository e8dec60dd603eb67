"""Rank a fleet by a price, or by several criteria in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from policies.lazy_terms import LazyTerms
from policies.view import Decision, FleetView, WorkerView

Explain = Callable[[WorkerView], Mapping[str, float]]
"""Returns the named parts of one worker's cost."""


def by_cost(
    fleet: FleetView,
    cost: Callable[[WorkerView], float],
    tie: Callable[[WorkerView], tuple[int, ...]],
    reason: str,
    unit: str,
    explain: Explain,
) -> Decision:
    """Rank by lowest `cost`, then by lowest `tie`, then in the fleet's order."""
    priced = [(cost(view), tie(view), place, view) for place, view in enumerate(fleet.workers)]
    priced.sort()
    return Decision(
        tuple([entry[3].id for entry in priced]),
        reason,
        tuple([entry[0] for entry in priced]),
        unit,
        LazyTerms(fleet.workers, explain),
    )


def by_key(fleet: FleetView, key: Callable[[WorkerView], tuple[float, ...]], reason: str, explain: Explain) -> Decision:
    """Rank by lowest `key`, then in the fleet's order. For policies that compare criteria and have no cost."""
    ranked = sorted(fleet.workers, key=key)
    return Decision(tuple([view.id for view in ranked]), reason, terms=LazyTerms(fleet.workers, explain))

"""Fleets in order: by a price, or by criteria that come one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from policies.lazy_terms import LazyTerms
from policies.view import Decision, FleetView, WorkerView

Explain = Callable[[WorkerView], Mapping[str, float]]
"""The named parts of one worker's cost."""


def by_cost(
    fleet: FleetView,
    cost: Callable[[WorkerView], float],
    tie: Callable[[WorkerView], tuple[int, ...]],
    reason: str,
    unit: str,
    explain: Explain,
) -> Decision:
    """Least `cost` first; among equals, least `tie`; then in the fleet's order."""
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
    """Least `key` first, then in the fleet's order; for rules that have criteria and no price."""
    ranked = sorted(fleet.workers, key=key)
    return Decision(tuple([view.id for view in ranked]), reason, terms=LazyTerms(fleet.workers, explain))

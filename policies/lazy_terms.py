"""Parts of a decision that are computed only when they are read, because most decisions are never looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import overload

import numpy as np

from policies.view import Column, FleetView, WorkerId, WorkerView


class LazyTerms(Mapping[WorkerId, Mapping[str, float]]):
    """The named parts of each worker's cost, which `explain` computes for the candidate at a place of the fleet."""

    __slots__ = ("_explain", "_fleet")

    def __init__(self, fleet: FleetView, explain: Callable[[int], Mapping[str, float]]) -> None:
        self._fleet = fleet
        self._explain = explain

    def __getitem__(self, worker: WorkerId) -> Mapping[str, float]:
        return self._explain(self._fleet.roster.places[worker])

    def __iter__(self) -> Iterator[WorkerId]:
        return iter(self._fleet.ids)

    def __len__(self) -> int:
        return len(self._fleet)


def view_terms(fleet: FleetView, explain: Callable[[WorkerView], Mapping[str, float]]) -> LazyTerms:
    return LazyTerms(fleet, lambda place: explain(fleet.worker(place)))


class CostOrder:
    """The places of a fleet by cost, then by `ties`, with `first` before all others. Sorted when `places` is called."""

    __slots__ = ("_places", "_ties", "costs", "first")

    def __init__(self, costs: Column, ties: Column, first: int) -> None:
        self.costs = costs
        self.first = first
        self._ties = ties
        self._places: list[int] = []

    def places(self) -> list[int]:
        """Return every place once, best first."""
        if not self._places:
            rest: list[int] = np.lexsort((self._ties, self.costs)).tolist()
            rest.remove(self.first)
            self._places = [self.first, *rest]
        return self._places


class LazyRanking(Sequence[WorkerId]):
    """Workers in the order of their costs. Reading the first one sorts nothing."""

    __slots__ = ("_fleet", "_order")

    def __init__(self, fleet: FleetView, order: CostOrder) -> None:
        self._fleet = fleet
        self._order = order

    @overload
    def __getitem__(self, index: int) -> WorkerId: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[WorkerId]: ...
    def __getitem__(self, index: int | slice) -> WorkerId | Sequence[WorkerId]:
        ids = self._fleet.ids
        if isinstance(index, slice):
            return tuple([ids[place] for place in self._order.places()[index]])
        return ids[self._order.first if index == 0 else self._order.places()[index]]

    def __len__(self) -> int:
        return len(self._fleet)

    def __eq__(self, other: object) -> bool:
        return self[:] == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(self[:])


class LazyCosts(Sequence[float]):
    """Costs in the order of a `LazyRanking`."""

    __slots__ = ("_order",)

    def __init__(self, order: CostOrder) -> None:
        self._order = order

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float]: ...
    def __getitem__(self, index: int | slice) -> float | Sequence[float]:
        costs = self._order.costs
        if isinstance(index, slice):
            if index == slice(0, 1):
                return (float(costs[self._order.first]),)
            return tuple([float(costs[place]) for place in self._order.places()[index]])
        return float(costs[self._order.first if index == 0 else self._order.places()[index]])

    def __len__(self) -> int:
        return len(self._order.costs)

    def __eq__(self, other: object) -> bool:
        return self[:] == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(self[:])

"""Parts of a decision that are computed only when they are read, because most decisions are never looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar, overload

import numpy as np

from policies.view import Column, FleetView, WorkerId


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


T = TypeVar("T")


class InOrder(Sequence[T]):
    """Values in the order of their costs. `read` returns that of a place. Reading the first one sorts nothing."""

    __slots__ = ("_order", "_read")

    def __init__(self, order: CostOrder, read: Callable[[int], T]) -> None:
        self._order = order
        self._read = read

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        order = self._order
        if isinstance(index, slice):
            places = [order.first] if index == slice(0, 1) else order.places()[index]
            return tuple([self._read(place) for place in places])
        return self._read(order.first if index == 0 else order.places()[index])

    def __len__(self) -> int:
        return len(self._order.costs)

    def __eq__(self, other: object) -> bool:
        return self[:] == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(self[:])

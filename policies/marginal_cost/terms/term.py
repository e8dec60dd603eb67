"""What a term of the cost is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeAlias

from policies.ranking import FactOf, values
from policies.view import Column, FleetView, RequestView, WorkerView

Price: TypeAlias = Sequence[float] | Column
"""Seconds for each candidate by place; empty: 0 for all."""


class Term(ABC):
    """A part of the cost."""

    meanings: ClassVar[Mapping[str, str]]
    """The names in explanations, each with its meaning in one line."""

    @abstractmethod
    def price(self, request: RequestView, fleet: FleetView) -> Price: ...

    def explained(self, view: WorkerView, price_s: float) -> Mapping[str, float]:
        (name,) = self.meanings
        return {name: price_s}


class FactTerm(Term):
    """A term that is a fact of a candidate alone, in the sense of `policies.ranking`."""

    fact: FactOf

    def price(self, request: RequestView, fleet: FleetView) -> Price:
        found: Price = values(fleet, self.fact)
        return found

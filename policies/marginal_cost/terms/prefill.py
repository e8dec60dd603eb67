"""The prefill, and what it costs the requests that come next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from policies.marginal_cost.terms.term import FactTerm
from policies.ranking import FactOf, Facts, Value
from policies.view import WorkerView


class Prefill(FactTerm):
    """The prefill of the uncached tokens, times 1 / (1 - utilisation).

    For Poisson arrivals, work added to an M/G/1 queue delays later requests in proportion to arrival rate, work and
    wait, over 1 - utilisation (the first step of policy iteration, Krishnan 1990). This is the cheap form. So an idle
    fleet is ranked by prefill work, and near saturation cached tokens count more and more.
    """

    meanings: ClassVar[Mapping[str, str]] = {
        "prefill_s": "Time to prefill the part of the prompt that is not cached.",
        "prefill_externality_s": "Delay that this prefill causes to requests that come next.",
    }

    def __init__(self) -> None:
        self.fact: FactOf = with_externality

    def explained(self, view: WorkerView, price_s: float) -> Mapping[str, float]:
        return {"prefill_s": view.prefill_s, "prefill_externality_s": price_s - view.prefill_s}


def with_externality(of: Facts) -> Value:
    """Return the prefill with its externality, in seconds."""
    return of.prefill_s / (1.0 - of.utilisation)

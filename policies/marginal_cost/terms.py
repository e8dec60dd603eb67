"""The terms of the default rule's cost. Each prices every candidate in seconds, and explains itself in one line."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from policies.marginal_cost.hot_prefix import Price, hot_prefix_s
from policies.view import FleetView, RequestView, WorkerView
from policies.wrappers.prefill_lanes import TERM, PrefillLanes


class Term(ABC):
    """A part of the cost. `meanings` has the names in explanations, each with its meaning in one line."""

    def __init__(self, meanings: Mapping[str, str]) -> None:
        self.meanings = meanings

    @abstractmethod
    def price(self, request: RequestView, fleet: FleetView) -> Price: ...

    def explained(self, view: WorkerView, price_s: float) -> Mapping[str, float]:
        (name,) = self.meanings
        return {name: price_s}


class FactTerm(Term):
    """A term that depends on the candidate alone. `fact` is a number of one worker, and an array of a fleet."""

    def __init__(self, meanings: Mapping[str, str], fact: Callable[[Any], Any]) -> None:
        super().__init__(meanings)
        self._fact = fact

    def price(self, request: RequestView, fleet: FleetView) -> Price:
        fact = self._fact
        price_s: Price = [fact(view) for view in fleet.workers] if fleet.is_small else fact(fleet)
        return price_s


class Prefill(FactTerm):
    """The prefill of the uncached tokens, times 1 / (1 - utilisation).

    For Poisson arrivals, work added to an M/G/1 queue delays later requests in proportion to arrival rate, work and
    wait, over 1 - utilisation (the first step of policy iteration, Krishnan 1990). This is the cheap form. So an idle
    fleet is ranked by prefill work, and near saturation cached tokens count more and more.
    """

    def explained(self, view: WorkerView, price_s: float) -> Mapping[str, float]:
        return {"prefill_s": view.prefill_s, "prefill_externality_s": price_s - view.prefill_s}


class HotPrefix(Term):
    def price(self, request: RequestView, fleet: FleetView) -> Price:
        return hot_prefix_s(request, fleet)


class PrefillLane(Term):
    """The price of `policies.wrappers.prefill_lanes`, where lanes are around the rule."""

    def price(self, request: RequestView, fleet: FleetView) -> Price:
        return fleet.lane_price_s


def terms_of(stream_weight: float) -> list[Term]:
    """Return the terms of the cost.

    The seconds of the decode externality are spread over hundreds of tokens. Services allow an answer of some hundred
    tokens about ten times the time of its first token (MLPerf for an 8B model: 2 s, and 100 ms for each token).
    """
    return [
        FactTerm(
            {"queue_wait_s": "Time until the prefills queued before this prompt are done."}, attrgetter("queue_wait_s")
        ),
        FactTerm(
            {"kv_wait_s": "Time until the prompt fits in the KV cache beside the running requests."},
            attrgetter("kv_wait_s"),
        ),
        Prefill(
            {
                "prefill_s": "Time to prefill the part of the prompt that is not cached.",
                "prefill_externality_s": "Delay that this prefill causes to requests that come next.",
            },
            lambda of: of.prefill_s / (1.0 - of.utilisation),
        ),
        FactTerm(
            {"decode_externality_s": "Delay that this request's decode causes to the streams on the worker, weighted."},
            lambda of: stream_weight * of.decode_externality_s,
        ),
        HotPrefix({"hot_prefix_s": "Penalty on a worker overloaded by requests that share this prompt's prefix."}),
        PrefillLane({TERM: PrefillLanes.meaning}),
    ]

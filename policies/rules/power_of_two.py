"""Two workers at random, the less loaded of them."""

from __future__ import annotations

import random

from policies.params import Params
from policies.ranking import counts, ids_at, running_requests
from policies.view import Decision, FleetView, RequestView
from policies.weights import shuffled


class PowerOfTwo:
    """Best of two random workers by running requests; the others follow in random order as alternatives.

    Source: Mitzenmacher, The power of two choices in randomized load balancing (IEEE TPDS 2001).
    """

    params_type = Params

    def __init__(self, params: Params, rng: random.Random) -> None:
        self._rng = rng

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        order = shuffled(fleet, self._rng)
        requests = counts(fleet, running_requests)
        order[:2] = sorted(order[:2], key=requests.__getitem__)
        costs = tuple([float(requests[place]) for place in order])
        return Decision(ids_at(fleet, order), "less loaded of two drawn at random", costs, "requests")

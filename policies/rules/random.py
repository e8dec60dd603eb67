"""Uniformly random, blind to load and cache."""

from __future__ import annotations

import random

from policies.params import Params
from policies.ranking import ids_at
from policies.view import Decision, FleetView, RequestView
from policies.weights import shuffled


class RandomChoice:
    """A random order of the workers. Source: textbook; `random` of sglang-router and vllm-router."""

    params_type = Params

    def __init__(self, params: Params, rng: random.Random) -> None:
        self._rng = rng

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        return Decision(ids_at(fleet, shuffled(fleet, self._rng)), "drawn at random")

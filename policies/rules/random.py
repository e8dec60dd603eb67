"""Uniformly random, blind to load and cache."""

from __future__ import annotations

import random

from policies.params import Params
from policies.view import Decision, FleetView, RequestView


class RandomChoice:
    """A random order of the workers. Source: textbook; `random` of sglang-router and vllm-router."""

    params_type = Params

    def __init__(self, params: Params, rng: random.Random) -> None:
        self._rng = rng

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Shuffle."""
        ranked = list(fleet.ids)
        self._rng.shuffle(ranked)
        return Decision(tuple(ranked), "drawn at random")

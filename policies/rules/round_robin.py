"""Round robin: each worker in order, blind to load and cache."""

from __future__ import annotations

import random

from policies.least_recently_used import LeastRecentlyUsed
from policies.params import Params
from policies.ranking import by_keys
from policies.view import Decision, FleetView, LifecycleEvent, RequestView


class RoundRobin:
    """The least recently used worker. Source: textbook; nginx's default upstream rule."""

    params_type = Params

    def __init__(self, params: Params, rng: random.Random) -> None:
        self._last_used = LeastRecentlyUsed()

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        return by_keys(fleet, (self._last_used.of,), "least recently used", {})

    def observe(self, event: LifecycleEvent) -> None:
        self._last_used.observe(event)

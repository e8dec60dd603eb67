"""Join the shortest queue, counted in requests."""

from __future__ import annotations

import random

from policies.least_recently_used import LeastRecentlyUsed
from policies.params import Params
from policies.ranking import by_cost, running_requests
from policies.view import Decision, FleetView, LifecycleEvent, RequestView


class LeastRequests:
    """The worker with the fewest running requests; ties to the least recently used.

    Source: join-the-shortest-queue (Winston 1977); nginx ``least_conn``, Envoy ``LEAST_REQUEST`` over all hosts.
    """

    params_type = Params

    def __init__(self, params: Params, rng: random.Random) -> None:
        self._last_used = LeastRecentlyUsed()

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        reason = "fewest running requests"
        return by_cost(fleet, running_requests, reason, "requests", {}, (self._last_used.of,))

    def observe(self, event: LifecycleEvent) -> None:
        self._last_used.observe(event)

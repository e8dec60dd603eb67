"""Join the shortest queue, counted in requests."""

from __future__ import annotations

import random

from policies.least_recently_used import LeastRecentlyUsed
from policies.params import Params
from policies.view import Decision, FleetView, LifecycleEvent, RequestView


class LeastRequests:
    """The worker with the fewest running requests; ties to the least recently used.

    Source: join-the-shortest-queue (Winston 1977); nginx ``least_conn``, Envoy ``LEAST_REQUEST`` over all hosts.
    """

    params_type = Params

    def __init__(self, params: Params, rng: random.Random) -> None:
        self._last_used = LeastRecentlyUsed()

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Rank by running requests."""
        last = self._last_used.last
        ranked = sorted(fleet.workers, key=lambda view: (view.running_requests, last(view.id)))
        costs = tuple(float(view.running_requests) for view in ranked)
        return Decision(tuple(view.id for view in ranked), "fewest running requests", costs, "requests")

    def observe(self, event: LifecycleEvent) -> None:
        """Record which worker was used."""
        self._last_used.observe(event)

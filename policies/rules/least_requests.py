"""Join the shortest queue, counted in requests."""

from __future__ import annotations

from policies.params import Params
from policies.ranking import by_cost, running_requests
from policies.rules.rule import Rule
from policies.view import Decision, FleetView, RequestView


class LeastRequests(Rule[Params]):
    """The worker with the fewest running requests; ties to the least recently used.

    Source: join-the-shortest-queue (Winston 1977); nginx ``least_conn``, Envoy ``LEAST_REQUEST`` over all hosts.
    """

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        reason = "fewest running requests"
        return by_cost(fleet, running_requests, reason, "requests", {}, (self._last_used.of,))

"""Round robin: each worker in order, blind to load and cache."""

from __future__ import annotations

from policies.params import Params
from policies.ranking import by_keys
from policies.rules.rule import Rule
from policies.view import Decision, FleetView, RequestView


class RoundRobin(Rule[Params]):
    """The least recently used worker. Source: textbook; nginx's default upstream rule."""

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        return by_keys(fleet, (self._last_used.of,), "least recently used", {})

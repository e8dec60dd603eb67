"""Join the shortest queue, counted in prompt tokens still to be prefilled."""

from __future__ import annotations

import random

from policies.least_recently_used import LeastRecentlyUsed
from policies.params import Params
from policies.view import Decision, FleetView, LifecycleEvent, RequestView


class LeastTokens:
    """The worker with the fewest queued uncached tokens (P); ties by running requests, then to the least recently used.

    The request's own length is the same everywhere, so P + n ranks as P does. Source: join-the-shortest-queue in
    work instead of count ("least work left"); `least tokens` in vLLM production-stack and llm-d's load scorers.
    """

    params_type = Params

    def __init__(self, params: Params, rng: random.Random) -> None:
        self._last_used = LeastRecentlyUsed()

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Rank by queued tokens."""
        last = self._last_used.last
        ranked = sorted(fleet.workers, key=lambda view: (view.queued_tokens, view.running_requests, last(view.id)))
        costs = tuple(float(view.queued_tokens) for view in ranked)
        return Decision(tuple(view.id for view in ranked), "fewest queued tokens", costs, "tokens")

    def observe(self, event: LifecycleEvent) -> None:
        """Record which worker was used."""
        self._last_used.observe(event)

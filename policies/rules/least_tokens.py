"""Join the shortest queue, counted in prompt tokens still to be prefilled."""

from __future__ import annotations

import random

from policies.least_recently_used import LeastRecentlyUsed
from policies.params import Params
from policies.ranking import by_cost, queued_tokens, running_requests
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
        ties = (running_requests, self._last_used.of)
        return by_cost(fleet, queued_tokens, "fewest queued tokens", "tokens", {}, ties)

    def observe(self, event: LifecycleEvent) -> None:
        self._last_used.observe(event)

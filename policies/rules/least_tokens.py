"""Join the shortest queue, counted in prompt tokens still to be prefilled."""

from __future__ import annotations

from policies.params import Params
from policies.ranking import by_cost, queued_tokens, running_requests
from policies.rules.rule import Rule
from policies.view import Decision, FleetView, RequestView


class LeastTokens(Rule[Params]):
    """The worker with the fewest queued uncached tokens (P); ties by running requests, then to the least recently used.

    The request's own length is the same everywhere, so P + n ranks as P does. Source: join-the-shortest-queue in
    work instead of count ("least work left"); `least tokens` in vLLM production-stack and llm-d's load scorers.
    """

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        ties = (running_requests, self._last_used.of)
        return by_cost(fleet, queued_tokens, "fewest queued tokens", "tokens", {}, ties)

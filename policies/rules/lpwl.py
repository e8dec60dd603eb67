"""Least prefill work left: queued plus own uncached tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from policies.params import Params
from policies.ranking import by_cost, prefill_work, queued_tokens, running_requests, uncached_tokens
from policies.rules.rule import Rule
from policies.view import Decision, FleetView, RequestView

_TERMS = {"queued_tokens": queued_tokens, "uncached_tokens": uncached_tokens}


class Lpwl(Rule[Params]):
    """Least P + u: queued uncached tokens plus the request's own; ties by running requests, then to the least recently
    used.

    Source: LPWL (2026), compared with LMetric and a tuned three-weight rule on 8 x H20 with agent traffic. With one
    speed for all workers it is also the limit of `marginal_cost` at low utilisation.
    """

    terms: ClassVar[Mapping[str, str]] = {
        "queued_tokens": "Prompt tokens queued for prefill on the worker.",
        "uncached_tokens": "Prompt tokens that are not in the worker's cache.",
    }

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        ties = (running_requests, self._last_used.of)
        return by_cost(fleet, prefill_work, "least prefill work", "tokens", _TERMS, ties)

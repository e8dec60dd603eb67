"""LMetric: prefill work times requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from policies.params import Params
from policies.ranking import by_cost, prefill_work, queued_tokens, uncached_tokens
from policies.rules.rule import Rule
from policies.view import Column, Decision, FleetView, RequestView


class Lmetric(Rule[Params]):
    """Least (P + u) x (B + 1): queued plus own uncached tokens, times the requests there with this one; ties to the
    least recently used.

    A weight between the two factors would cancel in the comparison, so there is none to tune. The published product
    is (P + u) x B, which is zero on every worker without requests however long its prefill; counting the new request
    mends that, as AIBrix, llm-d and Dynamo do too, and P + u counts as at least 1 for the same reason.

    Source: Simple is better: multiplication may be all you need for LLM request scheduling (arXiv 2603.15202). The
    paper's detector of hot prefixes, a filter before the product, is left out. `kv_aware` of vllm-router 0.1.17 chooses
    as this does, request by request, in docs/results/peers.md; its source for that release was not found.
    """

    terms: ClassVar[Mapping[str, str]] = {
        "queued_tokens": "Prompt tokens queued for prefill on the worker.",
        "uncached_tokens": "Prompt tokens that are not in the worker's cache.",
        "requests": "Requests on the worker, this one included.",
    }

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        reason, unit = "least prefill work x requests", "tokens x requests"
        return by_cost(fleet, _product, reason, unit, _TERMS, (self._last_used.of,))


def _requests(of: FleetView) -> Column:
    return of.running_requests + 1


def _product(of: FleetView) -> Column:
    return np.maximum(prefill_work(of), 1.0) * _requests(of)


_TERMS = {"queued_tokens": queued_tokens, "uncached_tokens": uncached_tokens, "requests": _requests}

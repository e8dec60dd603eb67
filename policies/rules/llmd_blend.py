"""llm-d's weighted blend of prefix, queue and memory scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from policies.params import Params
from policies.ranking import by_cost, least, most
from policies.rules.rule import Rule
from policies.view import Column, Decision, FleetView, RequestView

Weight = Annotated[float, Meta(ge=0)]


class LlmdBlendParams(Params, frozen=True):
    """Defaults as published with llm-d's guides until mid-2026."""

    prefix_weight: Annotated[Weight, Meta(description="Weight of the cached share of the prompt.")] = 3.0
    queue_weight: Annotated[
        Weight, Meta(description="Weight of a short queue: 1 for the shortest of all, 0 for the longest.")
    ] = 2.0
    kv_weight: Annotated[Weight, Meta(description="Weight of the free share of the KV cache.")] = 2.0


class LlmdBlend(Rule[LlmdBlendParams]):
    """Most 3 x cached share + 2 x queue score + 2 x free share of the KV cache; ties to the least recently used (the
    original: at random).

    The queue score runs from 1 for the fewest requests that wait for their prefill to 0 for the most; all are 1 where
    all are equal. So one waiting request weighs as much as a hundred if no worker has more. Shown as a cost: the points
    missing to the sum of the weights.

    Source: llm-d router, `prefix-cache-scorer`, `queue-scorer` and `kv-cache-utilization-scorer` at weights 3, 2, 2
    with `max-score-picker`. There queue and memory are scraped from the workers; here they are the gateway's own
    reservations. A request counts as waiting until its prefill is done, as only the worker knows when that began.
    """

    params_type = LlmdBlendParams
    terms: ClassVar[Mapping[str, str]] = {
        "prefix": "Points missing because the prompt is not cached.",
        "kv": "Points missing because the KV cache is in use.",
        "queue": "Points missing because requests wait for their prefill.",
    }

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        params, usable = self._params, _usable_tokens(request)
        shortest, longest = least(fleet, _queued_requests), most(fleet, _queued_requests)

        def prefix(of: FleetView) -> Column:
            return params.prefix_weight * (1.0 - np.minimum(_share(of.cached_tokens, usable), 1.0))

        def kv(of: FleetView) -> Column:
            return params.kv_weight * np.minimum(_share(of.kv_tokens, of.kv_capacity_tokens), 1.0)

        def queue(of: FleetView) -> Column:
            return params.queue_weight * _share(of.queued_requests - shortest, longest - shortest)

        return by_cost(
            fleet,
            lambda of: prefix(of) + kv(of) + queue(of),
            "highest score",
            "points below the best score",
            {"prefix": prefix, "kv": kv, "queue": queue},
            (self._last_used.of,),
        )


def _usable_tokens(request: RequestView) -> int:
    """The most a cache can serve: full blocks of the prompt without its last token."""
    block = max(1, request.block_tokens)
    return max(0, request.prompt_tokens - 1) // block * block


def _share(part: Column, whole: Column | float) -> Column:
    """Return part / whole; 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros_like(part), where=np.asarray(whole) != 0.0)


def _queued_requests(of: FleetView) -> Column:
    return of.queued_requests

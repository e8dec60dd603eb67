"""llm-d's weighted blend of prefix, queue and memory scores."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.least_recently_used import LeastRecentlyUsed
from policies.params import Params
from policies.ranking import by_cost
from policies.view import Decision, FleetView, LifecycleEvent, RequestView, WorkerView

Weight = Annotated[float, Meta(ge=0)]


class LlmdBlendParams(Params, frozen=True):
    """Defaults as published with llm-d's guides until mid-2026."""

    prefix_weight: Annotated[Weight, Meta(description="Weight of the cached share of the prompt.")] = 3.0
    queue_weight: Annotated[
        Weight, Meta(description="Weight of a short queue: 1 for the shortest of all, 0 for the longest.")
    ] = 2.0
    kv_weight: Annotated[Weight, Meta(description="Weight of the free share of the KV cache.")] = 2.0


class LlmdBlend:
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

    def __init__(self, params: LlmdBlendParams, rng: random.Random) -> None:
        self._params = params
        self._last_used = LeastRecentlyUsed()

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Rank by the points missing to the best possible score."""
        last = self._last_used.last
        queues = [view.queued_requests for view in fleet.workers]
        longest, shortest = max(queues), min(queues)
        usable = _usable_tokens(request)

        def terms(view: WorkerView) -> Mapping[str, float]:
            missing = self._missing(view, usable)
            missing["queue"] = self._params.queue_weight * _place(view.queued_requests, shortest, longest)
            return missing

        return by_cost(
            fleet,
            lambda view: sum(terms(view).values()),
            lambda view: (last(view.id),),
            "highest score",
            "points below the best score",
            terms,
        )

    def observe(self, event: LifecycleEvent) -> None:
        """Record which worker was used."""
        self._last_used.observe(event)

    def _missing(self, view: WorkerView, usable_tokens: int) -> dict[str, float]:
        share = min(1.0, view.cached_tokens / usable_tokens) if usable_tokens else 0.0
        used = min(1.0, view.kv_tokens / view.kv_capacity_tokens) if view.kv_capacity_tokens else 0.0
        return {"prefix": self._params.prefix_weight * (1.0 - share), "kv": self._params.kv_weight * used}


def _usable_tokens(request: RequestView) -> int:
    """The most a cache can serve: full blocks of the prompt without its last token."""
    block = max(1, request.block_tokens)
    return max(0, request.prompt_tokens - 1) // block * block


def _place(count: int, least: int, most: int) -> float:
    return (count - least) / (most - least) if most > least else 0.0

"""Dynamo's default: prefill blocks plus decode blocks, less what is cached."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.least_recently_used import LeastRecentlyUsed
from policies.params import Params
from policies.ranking import by_cost
from policies.view import Decision, FleetView, LifecycleEvent, RequestView, WorkerView

_BLOCK_TOKENS = 16
"""Where the prompt has no identity and so no block size; the order does not depend on it."""

Credit = Annotated[float, Meta(ge=0, le=1)]


class DynamoDefaultParams(Params, frozen=True):
    """Defaults as published with Dynamo 1.6."""

    prefill_load_scale: Annotated[
        float, Meta(ge=0, description="Weight of prefill blocks; decode blocks have weight 1.")
    ] = 1.0
    overlap_credit: Annotated[
        Credit, Meta(description="Prefill blocks taken off per block cached in the fastest tier.")
    ] = 1.0
    host_credit: Annotated[Credit, Meta(description="The same per block in the worker's host memory.")] = 0.75
    disk_credit: Annotated[Credit, Meta(description="The same per block in any slower tier.")] = 0.25
    request_weight: Annotated[float, Meta(ge=0, description="Blocks that each running request counts as.")] = 0.0


class DynamoDefault:
    """Least scale x max(0, (P + n) / b - cached blocks x credit) + (K + n) / b + weight x B; ties to the
    least recently used (the original: at random).

    P are queued uncached tokens, n the prompt's, b the block size, K the context tokens of running requests: prefill
    work and occupied memory are added one to one. The queue of admission, the temperature (0 by default) and the
    decay of the credit (0 by default) are left out. Dynamo counts a request's growing answer not at all by default; K
    here counts it in full.

    Source: Dynamo 1.6, lib/kv-router/src/scheduling/selector/default.rs and config.rs; the host and disk
    credits (0.75 and 0.25) were not found there.
    """

    params_type = DynamoDefaultParams
    terms: ClassVar[Mapping[str, str]] = {
        "prefill_blocks": "Blocks to prefill: queued and of this prompt, less those credited as cached; weighted.",
        "decode_blocks": "Blocks that running requests and this prompt hold.",
        "requests": "Requests placed on the worker, weighted.",
    }

    def __init__(self, params: DynamoDefaultParams, rng: random.Random) -> None:
        self._params = params
        self._last_used = LeastRecentlyUsed()

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Rank by the sum."""
        last = self._last_used.last
        tokens, block = request.prompt_tokens, request.block_tokens or _BLOCK_TOKENS

        def terms(view: WorkerView) -> Mapping[str, float]:
            return self._terms(view, tokens, block)

        return by_cost(
            fleet,
            lambda view: sum(terms(view).values()),
            lambda view: (last(view.id),),
            "least prefill and decode blocks",
            "blocks",
            terms,
        )

    def observe(self, event: LifecycleEvent) -> None:
        """Record which worker was used."""
        self._last_used.observe(event)

    def _terms(self, view: WorkerView, prompt_tokens: int, block_tokens: int) -> Mapping[str, float]:
        prefill = (view.queued_tokens + prompt_tokens - self._credit_tokens(view)) / block_tokens
        return {
            "prefill_blocks": self._params.prefill_load_scale * max(0.0, prefill),
            "decode_blocks": (view.kv_tokens + prompt_tokens) / block_tokens,
            "requests": self._params.request_weight * view.running_requests,
        }

    def _credit_tokens(self, view: WorkerView) -> float:
        credit = self._params.overlap_credit * view.cached_tokens
        for tier, tokens in (view.cached_tokens_by_tier or {}).items():
            if tier != "GPU":
                credit += tokens * (self._params.host_credit if tier == "CPU" else self._params.disk_credit)
        return credit

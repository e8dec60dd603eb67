"""Dynamo's default: prefill blocks plus decode blocks, less what is cached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from policies.params import Params
from policies.ranking import by_cost
from policies.rules.rule import Rule
from policies.view import Column, Decision, FleetView, RequestView

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


class DynamoDefault(Rule[DynamoDefaultParams]):
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

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        params, tokens, block = self._params, request.prompt_tokens, request.block_tokens or _BLOCK_TOKENS

        def prefill(of: FleetView) -> Column:
            blocks = (of.queued_tokens + tokens - self._credit_tokens(of)) / block
            scaled: Column = params.prefill_load_scale * np.maximum(blocks, 0.0)
            return scaled

        def decode(of: FleetView) -> Column:
            return (of.kv_tokens + tokens) / block

        def requests(of: FleetView) -> Column:
            return params.request_weight * of.running_requests

        return by_cost(
            fleet,
            lambda of: prefill(of) + decode(of) + requests(of),
            "least prefill and decode blocks",
            "blocks",
            {"prefill_blocks": prefill, "decode_blocks": decode, "requests": requests},
            (self._last_used.of,),
        )

    def _credit_tokens(self, of: FleetView) -> Column:
        """Return the tokens that count as cached. Only few workers have slower tiers."""
        credit: Column = self._params.overlap_credit * of.cached_tokens
        for place, tiers in of.columns.cached_tokens_by_tier.items():
            credit[place] = self._with_tiers(credit[place], tiers)
        return credit

    def _with_tiers(self, credit: float, tiers: Mapping[str, int]) -> float:
        for tier, tokens in tiers.items():
            if tier != "GPU":
                credit += tokens * (self._params.host_credit if tier == "CPU" else self._params.disk_credit)
        return credit

"""Dynamo's two-tier rule: load if it is far apart, else cache if much is cached, else load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.params import Params
from policies.ranking import Terms, by_keys, cached_tokens, least, most, running_requests
from policies.rules.rule import Rule
from policies.view import Decision, FleetView, RequestView

_BLOCK_TOKENS = 16


class DynamoTwoTierParams(Params, frozen=True):
    """Defaults as published with Dynamo 1.6."""

    balance_abs_threshold: Annotated[
        int, Meta(ge=0, description="Load decides if most - fewest requests exceed this ...")
    ] = 32
    balance_rel_threshold: Annotated[
        float, Meta(ge=1, description="... and the most are more than this multiple of the fewest.")
    ] = 1.1
    cache_threshold: Annotated[
        float, Meta(ge=0, le=1, description="Share of the prompt's blocks that the best match must exceed to count.")
    ] = 0.5


class DynamoTwoTier(Rule[DynamoTwoTierParams]):
    """If most - fewest requests > 32 and most > 1.1 x fewest: fewest requests. Else, if the best match is over half of
    the prompt's blocks: the fewest requests among the workers that have it. Else: fewest requests.

    Ties to the least recently used (the original: the order of its rows, which it leaves open).

    Source: Dynamo 1.6, policy `dynamo-two-tier-cost-fn` (lib/router-plugins/builtin/src/two_tier_cost_fn.rs), itself
    after `cache_aware_zmq` of SGLang's experimental router.
    """

    params_type = DynamoTwoTierParams
    terms: ClassVar[Mapping[str, str]] = {
        "match": "Prompt tokens in the worker's cache.",
        "requests": "Requests placed on the worker.",
    }

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        best, reason = self._tier(request, fleet)
        keys = (running_requests, self._last_used.of)
        terms: Terms = {"match": cached_tokens, "requests": running_requests}
        return by_keys(fleet, keys if best is None else (lambda of: of.cached_tokens != best, *keys), reason, terms)

    def _tier(self, request: RequestView, fleet: FleetView) -> tuple[int | None, str]:
        """The cached tokens to go for, None where load decides; and why."""
        params = self._params
        largest, fewest = most(fleet, running_requests), least(fleet, running_requests)
        if largest - fewest > params.balance_abs_threshold and largest > params.balance_rel_threshold * fewest:
            return None, f"imbalanced ({fewest} to {largest} requests)"
        best = most(fleet, cached_tokens)
        block = request.block_tokens or _BLOCK_TOKENS
        share = (best // block) / max(1, request.prompt_tokens // block)
        if share > params.cache_threshold:
            return best, f"best match ({share:.0%} of the blocks)"
        return None, f"fewest requests (best match {share:.0%})"

"""llm-d's default since August 2026: sticky until saturated."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from policies.params import Params
from policies.ranking import (
    FactOf,
    Terms,
    by_keys,
    least,
    prefill_work,
    queued_tokens,
    total,
    uncached_tokens,
)
from policies.rules.rule import Rule
from policies.view import Decision, FleetView, RequestView


class LlmdStickyParams(Params, frozen=True):
    """Defaults as published with llm-d router 0.10."""

    affinity_threshold: Annotated[
        float, Meta(ge=0, le=1, description="Share of the prompt's blocks that makes a worker sticky.")
    ] = 0.8
    max_ttft_penalty_s: Annotated[
        float, Meta(ge=0, description="Longer wait, in seconds, for which stickiness is given up; 0: never.")
    ] = 18.0
    prefill_tokens_per_s: Annotated[
        float, Meta(gt=0, description="Speed by which tokens become seconds (measured for Qwen 32B on two H100).")
    ] = 15_928.0


class LlmdSticky(Rule[LlmdStickyParams]):
    """Among workers with at least 0.8 of the prompt's blocks cached, the least P + u; among all of them if there is
    no such worker, or if the shortest queue (P) of those is 18 s longer than the shortest of the others.

    P are queued uncached tokens, at 15,928 tokens/s on every worker; u are the request's own. Ties go to the least
    recently used. The share is of the blocks that a cache can serve, so of the prompt without its last token.

    Source: llm-d router, `prefix-cache-affinity-filter` with `token-load-scorer` and `max-score-picker` (guide
    optimized-baseline). That scorer's ceiling of 4 million tokens is left out, and so is exploration (0 by default).
    """

    params_type = LlmdStickyParams
    terms: ClassVar[Mapping[str, str]] = {
        "queued_tokens": "Prompt tokens queued for prefill on the worker.",
        "uncached_tokens": "Prompt tokens that are not in the worker's cache.",
        "sticky": "1 if the worker has the prefix and is preferred for it.",
    }

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Sticky workers first while they are worth waiting for; by P + u among themselves."""
        needed = self._needed_tokens(request)

        def sticky(of: FleetView) -> NDArray[np.bool_]:
            return of.cached_tokens >= needed

        def other(of: FleetView) -> NDArray[np.bool_]:
            return of.cached_tokens < needed

        kept, reason = self._kept(fleet, sticky, other)
        keys = (prefill_work, self._last_used.of)
        terms: Terms = {
            "queued_tokens": queued_tokens,
            "uncached_tokens": uncached_tokens,
            "sticky": sticky,
        }
        return by_keys(fleet, (other, *keys) if kept else keys, reason, terms)

    def _needed_tokens(self, request: RequestView) -> float:
        """Return the cached tokens from which a worker is sticky; infinite where none can be."""
        block = max(1, request.block_tokens)
        return self._params.affinity_threshold * (max(0, request.prompt_tokens - 1) // block * block) or inf

    def _kept(self, fleet: FleetView, sticky: FactOf, other: FactOf) -> tuple[bool, str]:
        count = total(fleet, sticky)
        if count in (0, len(fleet)):
            return False, "least queued and uncached tokens: " + ("all sticky" if count else "none sticky")
        longer = least(fleet, queued_tokens, sticky) - least(fleet, queued_tokens, other)
        penalty_s = longer / self._params.prefill_tokens_per_s
        if self._params.max_ttft_penalty_s and penalty_s > self._params.max_ttft_penalty_s:
            return False, f"least queued and uncached tokens: sticky workers are {penalty_s:.1f} s behind"
        return True, f"least queued and uncached tokens of {count} sticky"

"""smg's cache-aware rule: a worker at a time spills, not the fleet at once."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.params import Params
from policies.ranking import Terms, by_keys, cached_tokens, least, most, running_requests, total
from policies.rules.rule import Rule
from policies.view import Decision, FleetView, RequestView


class SmgSpillParams(Params, frozen=True):
    """Defaults as published with smg 1.13."""

    cache_threshold: Annotated[
        float, Meta(ge=0, le=1, description="Share of the prompt that the best match must exceed to count.")
    ] = 0.3
    spill_rel: Annotated[
        float, Meta(ge=1, description="A worker spills above this multiple of the mean number of requests ...")
    ] = 1.5
    spill_min: Annotated[
        int, Meta(ge=0, description="... and above the mean by a margin of 2 sqrt(mean), but at least this ...")
    ] = 4
    spill_max: Annotated[int, Meta(ge=0, description="... and at most this.")] = 64


class SmgSpill(Rule[SmgSpillParams]):
    """The least busy of the workers with the longest match, if that is over 0.3 of the prompt. If its requests exceed
    both 1.5 x mean and mean + min(64, max(4, 2 sqrt(mean))), or without such a match: the fewest requests.

    A hot prefix thereby gains a further holder each time that all it has are full, where `cache_aware` leaves every
    prefix alone once any worker is far behind. Ties: the least recently used (the original: fewest requests
    served; at random among equal holders).

    Source: smg 1.13, `cache_aware` (model_gateway/src/policies/cache_aware.rs; the margin as in the notes on that
    release, later ones take a constant of 64). Matches are the gateway's view of each worker, as in smg's event-driven
    mode; there any match counts, the threshold is that of its approximate trees.
    """

    params_type = SmgSpillParams
    terms: ClassVar[Mapping[str, str]] = {
        "match": "Prompt tokens in the worker's cache.",
        "requests": "Requests placed on the worker.",
        "spills_over": "Requests from which on the worker with the best match is passed over.",
    }

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Holders of the longest match first, or by load alone."""
        limit = self._limit(fleet)
        best, reason = self._match(request, fleet, limit)
        keys = (running_requests, self._last_used.of)
        terms: Terms = {"match": cached_tokens, "requests": running_requests, "spills_over": limit}
        return by_keys(fleet, keys if best is None else (lambda of: of.cached_tokens != best, *keys), reason, terms)

    def _match(self, request: RequestView, fleet: FleetView, limit: float) -> tuple[int | None, str]:
        """The cached tokens to go for, None where load decides; and why."""
        best = most(fleet, cached_tokens)
        share = best / max(1, request.prompt_tokens)
        if share <= self._params.cache_threshold:
            return None, f"fewest requests (best match {share:.0%})"
        load = least(fleet, running_requests, lambda of: of.cached_tokens == best)
        if load > limit:
            return None, f"spilled: the best match ({share:.0%}) has {load} requests, over {limit:.1f}"
        return best, f"longest match ({share:.0%} of the prompt)"

    def _limit(self, fleet: FleetView) -> float:
        mean = total(fleet, running_requests) / len(fleet)
        margin = min(self._params.spill_max, max(self._params.spill_min, 2.0 * sqrt(mean)))
        return max(self._params.spill_rel * mean, mean + margin)

"""AIBrix's prefix-cache rule: longest match among workers that are not unusually busy."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from policies.params import Params
from policies.ranking import by_keys, counts, most, running_requests
from policies.rules.rule import Rule
from policies.view import Column, Decision, FleetView, RequestView


class AibrixPrefixParams(Params, frozen=True):
    """Defaults as AIBrix's chart installs them; its code alone has 8 and 1."""

    imbalance_requests: Annotated[
        int, Meta(ge=0, description="A difference between most and fewest requests above this ends matching.")
    ] = 16
    deviations: Annotated[
        float, Meta(ge=0, description="A match counts on a worker up to mean + this many standard deviations.")
    ] = 2.0


class AibrixPrefix(Rule[AibrixPrefixParams]):
    """If most - fewest requests > 16: fewest requests. Else the longest match, in whole percent, on a worker with at
    most mean + 2 sigma requests; ties: fewest requests. Nothing matched, or all of it too busy: fewest requests.

    sigma is the standard deviation of all workers' requests. Remaining ties to the least recently used (the original:
    at random).

    Source: AIBrix `prefix-cache` (pkg/plugins/gateway/algorithms/prefix_cache.go, v0.3 to v0.5). Later code gates by
    most > 2 (mean + 1) and a difference of at least 8, and then matches among the least busy only. Matches are the
    gateway's view of each worker, as with AIBrix's KV event synchronisation; its default is a table of its own past
    choices over blocks of 128 characters.
    """

    params_type = AibrixPrefixParams
    terms: ClassVar[Mapping[str, str]] = {
        "match_percent": "Share of the prompt in the worker's cache, in percent.",
        "requests": "Requests placed on the worker.",
        "limit": "Requests from which on the worker is passed over.",
    }

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        tokens = max(1, request.prompt_tokens)
        requests = counts(fleet, running_requests)
        imbalanced = max(requests) - min(requests) > self._params.imbalance_requests
        limit = _limit(requests, self._params.deviations)

        def percent(of: FleetView) -> Column:
            return np.where(of.running_requests <= limit, of.cached_tokens * 100 // tokens, 0.0) * (not imbalanced)

        best = most(fleet, percent)
        reason = f"longest match within the load limit ({best} %)" if best else "fewest requests: nothing matched"
        if imbalanced:
            reason = f"imbalanced ({min(requests)} to {max(requests)} requests)"
        return by_keys(
            fleet,
            (lambda of: -percent(of), running_requests, self._last_used.of),
            reason,
            {"match_percent": percent, "requests": running_requests, "limit": limit},
        )


def _limit(requests: list[int], deviations: float) -> float:
    """mean + `deviations` x the (population) standard deviation."""
    mean = sum(requests) / len(requests)
    return mean + deviations * sqrt(sum([(count - mean) ** 2 for count in requests]) / len(requests))

"""The default policy: place each request where it adds the least delay, in seconds."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from operator import add
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from policies.lazy_terms import LazyTerms
from policies.least_recently_used import LeastRecentlyUsed
from policies.marginal_cost.hot_prefix import Price
from policies.marginal_cost.terms import Term, terms_of
from policies.marginal_cost.ties import Ranked, rank_columns, rank_views
from policies.params import Params
from policies.view import Decision, FleetView, LifecycleEvent, RequestView
from policies.wrappers.prefill_lanes import STREAM_WEIGHT


class MarginalCostParams(Params, frozen=True):
    """Preferences only. Facts about model and hardware are learned."""

    stream_weight: Annotated[
        float,
        Meta(ge=0, description="Weight of a second of slower streaming; one before the first token weighs 1."),
    ] = STREAM_WEIGHT


class MarginalCost:
    """Least cost in seconds: queue wait, KV wait, the prefill times 1 / (1 - utilisation), and what the request costs
    others. Ties go to the fewest running requests, then to the worker that was used least recently.

    The cost of a worker is the sum of the terms below. Queue wait, KV wait and prefill predict the request's own time
    to first token; the others are the delay that it causes to other requests. Streaming is slower over hundreds of
    tokens, so its seconds have the weight `stream_weight`.

    By default `hold` is around the rule, which keeps a long prompt back while its worker runs other prefills or has no
    KV space for it. So are `lanes`, which keep long prefills on workers of their own while that saves more delay than
    it costs; workers with the label `lane`, `prefill` or `decode`, are always inside or outside.

    Queue wait and prefill are estimates. Requests with one system prompt cost the same on every worker that has it
    cached, and the lowest estimate would attract all of them. So candidates count as equal when their costs differ by
    less than the sum of their standard errors and they leave no more tokens uncached than the cheapest one. Tokens are
    counted and not estimated, so noise never costs reuse. Of equals those are preferred where the prompt fits into the
    KV cache, then the fewest running requests.

    [Leave one out](../../decisions/the-default-rule.md#without-each-part) shows what the rule loses without each part.
    """

    params_type: ClassVar[type[Params]] = MarginalCostParams
    prices_in_seconds: ClassVar[bool] = True
    wrapped: ClassVar[bool] = True
    terms: ClassVar[Mapping[str, str]] = {
        name: meaning for term in terms_of(0.0) for name, meaning in term.meanings.items()
    }

    def __init__(self, params: MarginalCostParams, rng: random.Random | None = None) -> None:
        self._last_used = LeastRecentlyUsed()
        self._params = params
        self._terms = terms_of(params.stream_weight)

    def __getnewargs__(self) -> tuple[MarginalCostParams]:
        return (self._params,)

    def __getstate__(self) -> tuple[MarginalCostParams, LeastRecentlyUsed]:
        return self._params, self._last_used

    def __setstate__(self, state: tuple[MarginalCostParams, LeastRecentlyUsed]) -> None:
        self._params, self._last_used = state
        self._terms = terms_of(self._params.stream_weight)

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        terms = self._terms
        prices = [term.price(request, fleet) for term in terms]
        found = (
            rank_views(fleet.workers, list(_sum(prices)), self._last_used)
            if fleet.is_small
            else rank_columns(fleet, np.asarray(_sum(prices)), self._last_used)
        )
        explained = LazyTerms(fleet, lambda place: _explained(terms, prices, fleet, place))
        return Decision(found.ids, _reason(found), found.costs_s, "s", explained)

    def observe(self, event: LifecycleEvent) -> None:
        self._last_used.observe(event)


def _reason(found: Ranked) -> str:
    if found.equals == 1:
        return "least added delay"
    chosen = "the least busy with space in its KV cache" if 0 < found.fitting < found.equals else "the least busy"
    return f"among {found.equals} whose costs differ by no more than the error of the estimates, {chosen}"


def _sum(prices: Sequence[Price]) -> Price:
    costs_s, *others = [price_s for price_s in prices if len(price_s)]
    for price_s in others:
        costs_s = costs_s + price_s if isinstance(costs_s, np.ndarray) else list(map(add, costs_s, price_s))
    return costs_s


def _explained(terms: Sequence[Term], prices: Sequence[Price], fleet: FleetView, place: int) -> Mapping[str, float]:
    """Return the terms of one worker's cost. They keep prices and not the request, because the decision log would
    otherwise keep prompts in memory."""
    view = fleet.worker(place)
    found: dict[str, float] = {}
    for term, price_s in zip(terms, prices, strict=True):
        found.update(term.explained(view, float(price_s[place]) if len(price_s) else 0.0))
    return found

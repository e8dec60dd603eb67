"""Preble's E2: exploit a cached prefix or explore, by the work of the last minutes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.history import History, PlacedLoad, chunks_of
from policies.params import Params
from policies.ranking import Fact, Terms, by_cost, by_keys, cached_tokens, running_requests
from policies.slowdown import Slowdown
from policies.view import Decision, FleetView, LifecycleEvent, LifecycleEventKind, RequestView, WorkerView

_REQUESTS_BEFORE_BALANCING = 50
"""Per worker, as in the original: before, the loads say too little."""


class PrebleParams(Params, frozen=True):
    """Defaults as published."""

    window_s: Annotated[float, Meta(gt=0, description="How far back work counts as load.")] = 180.0
    balance_threshold: Annotated[
        float, Meta(ge=1, description="The largest load may be this multiple of the least before requests move.")
    ] = 1.5


class Preble:
    """Exploit if more of the prompt is cached than not: of the workers with the longest match the least load. Else
    explore: least load + eviction + own prefill.

    * Load: prefill seconds of the uncached tokens, and decode seconds, placed there in the last 3 minutes, each as
      estimated when it was placed.
    * Eviction: prefill seconds of the context that the worker would evict, times its uses in that time.
    * Balancing: once 50 requests per worker have been placed, an exploit that would go to the largest load goes to the
      least instead, if the largest is over 1.5 times the least and would still be the larger one after that.
    * Replication: where requests of a prefix waited twice as long for their first token as in the 3 minutes before, an
      exploit explores.

    Times are the gateway's online estimates where Preble has regressions made per GPU beforehand. Prefixes are followed
    in chunks of 512 tokens, where Preble keeps a tree; generated tokens are left out of the model of a worker's cache.
    Load is summed over requests, which is the paper's sum over the tree's nodes of miss rate x count x time.

    Source: Preble (ICLR 2025, arXiv 2407.00023) and its code. Its local scheduler is vLLM's business and left out.
    """

    params_type = PrebleParams
    terms: ClassVar[Mapping[str, str]] = {
        "load": "Load of the worker in the latest window.",
        "cached_tokens": "Prompt tokens in the worker's cache.",
        "eviction": "Prefill of the tokens that this prompt would evict.",
        "prefill": "Prefill of the part of the prompt that is not cached.",
    }

    def __init__(self, params: PrebleParams, rng: random.Random) -> None:
        self._params = params
        self._history = History(params.window_s)
        self._slowdown = Slowdown(params.window_s)

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        loads = self._loads(fleet)
        best = max(fleet.workers, key=lambda view: view.cached_tokens)
        if best.cached_tokens <= best.uncached_tokens:
            return self._explore(fleet, loads, "explored: less is cached than not")
        if self._slowdown.slowed(_root(request), fleet.now_s):
            return self._explore(fleet, loads, "explored: the prefix waits twice as long as before")
        return self._exploit(fleet, loads, best.cached_tokens)

    def observe(self, event: LifecycleEvent) -> None:
        if event.kind is LifecycleEventKind.RESERVED:
            self._history.record(event)
        self._slowdown.observe(event, _root(event.request))

    def _loads(self, fleet: FleetView) -> list[float]:
        placed = self._history.loads(fleet.now_s)
        return [_load(view, placed.get(view.id, PlacedLoad())) for view in fleet.workers]

    def _exploit(self, fleet: FleetView, loads: Sequence[float], longest_tokens: int) -> Decision:
        workers = fleet.workers
        holders = [place for place, view in enumerate(workers) if view.cached_tokens == longest_tokens]
        chosen = min(holders, key=lambda place: (loads[place], workers[place].running_requests))
        relief = self._relief(fleet, loads, chosen)
        reason = f"exploited: least load of {len(holders)} with the longest match"
        if relief is not None:
            reason = f"balanced: {workers[chosen].id}, with the longest match, has the largest load"
        relieves = [place != relief for place in range(len(workers))]
        keys: Sequence[Fact] = (relieves, lambda of: of.cached_tokens != longest_tokens, loads, running_requests)
        return by_keys(fleet, keys, reason, {"load": loads, "cached_tokens": cached_tokens})

    def _relief(self, fleet: FleetView, loads: Sequence[float], chosen: int) -> int | None:
        """Return the place that takes over from the most loaded worker, if that is `chosen` and far ahead."""
        workers = fleet.workers
        if self._history.count < _REQUESTS_BEFORE_BALANCING * len(workers):
            return None
        least = min(range(len(workers)), key=loads.__getitem__)
        largest, smallest = loads[chosen], loads[least]
        if largest < max(loads) or largest <= self._params.balance_threshold * smallest:
            return None
        return least if smallest + workers[least].prefill_s <= largest - workers[chosen].prefill_s else None

    def _explore(self, fleet: FleetView, loads: Sequence[float], reason: str) -> Decision:
        workers = fleet.workers
        evictions = [self._history.victim_tokens(view) * _token_s(view) for view in workers]
        prefills = [view.prefill_s for view in workers]
        costs = [sum(parts) for parts in zip(loads, evictions, prefills, strict=True)]
        terms: Terms = {"load": loads, "eviction": evictions, "prefill": prefills}
        return by_cost(fleet, costs, reason, "s", terms, (running_requests,))


def _load(view: WorkerView, placed: PlacedLoad) -> float:
    return max(0.0, placed.unpriced_tokens * _token_s(view) + placed.prefill_s + placed.decode_s)


def _token_s(view: WorkerView) -> float:
    return view.prefill_s / max(1, view.uncached_tokens)


def _root(request: RequestView) -> int | None:
    """What a request is filed under: its first chunk, or all of a shorter prompt."""
    chunks = chunks_of(request)
    return chunks[0] if chunks else (request.block_hashes[-1] if request.block_hashes else None)

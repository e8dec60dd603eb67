"""DualMap: two workers per prefix by two hashes, the better of them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.params import Params
from policies.ranking import cached_tokens, fact_terms, ids_at, ordered, running_requests
from policies.rendezvous import hash_order
from policies.view import Column, Decision, FleetView, LifecycleEvent, LifecycleEventKind, RequestView, WorkerView
from policies.weights import uneven_weights

_DEPTHS = 8
"""Lengths of key tried, each twice the one before."""


class DualMapParams(Params, frozen=True):
    """Defaults as published with the paper's code; the window's length is that of Dynamo's port."""

    prefix_tokens: Annotated[
        int, Meta(ge=1, description="Length of the shortest key, rounded down to whole blocks.")
    ] = 128
    ttft_slo_s: Annotated[
        float, Meta(gt=0, description="Time to first token wanted; above half of it load decides.")
    ] = 5.0
    window_requests: Annotated[int, Meta(ge=1, description="Latest requests by which a prefix is judged hot.")] = 1_000


class DualMap:
    """Two candidates by two independent hashes of the prompt's prefix. Of these the one with more cached, unless its
    estimated time to first token exceeds half the SLO of 5 s: then, and where both have the same, the shorter estimate.

    A prefix is hot if more than 2 / N of the latest requests have it, for N workers. Hot prefixes take a key of twice
    the length, again and again, until it is not hot any more, and so spread over more pairs. A prompt without a
    full block has no key and goes where the estimate is shortest. The workers outside the pair follow by estimate, as
    alternatives. Before the gateway has learned any worker's speed an estimate is no measure of the SLO, and only
    breaks ties.

    Source: DualMap (ICLR 2026, arXiv 2602.06502) and its code; without its migration of waiting requests between the
    two. Rendezvous hashing stands for the two rings. The rule for hot prefixes is that of Dynamo's port; AIBrix's
    lengthens keys by one block at 6 % of 200 requests.
    """

    params_type = DualMapParams
    terms: ClassVar[Mapping[str, str]] = {
        "queue_wait_s": "Time until the prefills queued before this prompt are done.",
        "prefill_s": "Time to prefill the part of the prompt that is not cached.",
        "cached_tokens": "Prompt tokens in the worker's cache.",
    }

    def __init__(self, params: DualMapParams, rng: random.Random) -> None:
        self._params = params
        self._window: deque[tuple[int, ...]] = deque()
        self._arrivals: dict[int, int] = {}

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        order = ordered(fleet, (_estimates_s, running_requests))
        key = self._key(request, len(order))
        if key is None or len(order) == 1:
            return _decision(fleet, order, "no full block to hash: shortest estimate")
        weights = uneven_weights(fleet)
        first, second = hash_order(key, fleet.ids, 1, weights)[0], hash_order(key, fleet.ids, 2, weights)
        pair = first, second[0] if second[0] != first else second[1]
        best, reason = self._better(fleet.worker(pair[0]), fleet.worker(pair[1]))
        rest = [place for place in order if place not in pair]
        return _decision(fleet, [pair[best], pair[1 - best], *rest], reason)

    def observe(self, event: LifecycleEvent) -> None:
        if event.kind is not LifecycleEventKind.RESERVED:
            return
        keys = self._keys(event.request)
        self._window.append(keys)
        for key in keys:
            self._arrivals[key] = self._arrivals.get(key, 0) + 1
        if len(self._window) > self._params.window_requests:
            self._forget(self._window.popleft())

    def _forget(self, keys: tuple[int, ...]) -> None:
        for key in keys:
            self._arrivals[key] -= 1
            if not self._arrivals[key]:
                del self._arrivals[key]

    def _keys(self, request: RequestView) -> tuple[int, ...]:
        """Hashes of the prompt's prefix, each twice as long as the one before; of a short prompt the whole."""
        hashes = request.block_hashes
        shortest = max(1, self._params.prefix_tokens // max(1, request.block_tokens))
        depths = [shortest << level for level in range(_DEPTHS) if shortest << level <= len(hashes)]
        return tuple([hashes[depth - 1] for depth in depths]) if depths else tuple(hashes[-1:])

    def _key(self, request: RequestView, workers: int) -> int | None:
        """The shortest key that is not hot, else the longest."""
        keys = self._keys(request)
        hot = len(self._window) * 2 / workers
        for key in keys:
            if self._arrivals.get(key, 0) <= hot:
                return key
        return keys[-1] if keys else None

    def _better(self, first: WorkerView, second: WorkerView) -> tuple[int, str]:
        shorter = int(_estimate_s(second) < _estimate_s(first))
        if first.cached_tokens == second.cached_tokens:
            return shorter, "shorter estimate of the prefix's two workers"
        warmer = int(second.cached_tokens > first.cached_tokens)
        warm = second if warmer else first
        if warm.learned and _estimate_s(warm) > self._params.ttft_slo_s / 2:
            return shorter, f"shorter estimate of the prefix's two workers: {warm.id} is over half the SLO"
        return warmer, "more cached of the prefix's two workers"


def _queue_wait_s(of: FleetView) -> Column:
    return of.queue_wait_s


def _prefill_s(of: FleetView) -> Column:
    return of.prefill_s


def _estimate_s(of: WorkerView) -> float:
    return of.queue_wait_s + of.prefill_s


def _estimates_s(of: FleetView) -> Column:
    return of.queue_wait_s + of.prefill_s


_TERMS = {"queue_wait_s": _queue_wait_s, "prefill_s": _prefill_s, "cached_tokens": cached_tokens}


def _decision(fleet: FleetView, order: list[int], reason: str) -> Decision:
    return Decision(ids_at(fleet, order), reason, terms=fact_terms(fleet, _TERMS))

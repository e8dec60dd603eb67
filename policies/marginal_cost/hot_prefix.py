"""The price on a worker that requests with the same prefix keep busy."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt
from typing import TypeAlias

import numpy as np

from policies.view import Column, FleetView, RequestView, WorkerView

Price: TypeAlias = Sequence[float] | Column
"""Seconds for each candidate by place; empty: 0 for all."""


def hot_prefix_s(request: RequestView, fleet: FleetView) -> Price:
    """Price a worker that many running requests with this prompt's prefix keep busy; empty: 0 for all.

    It is 0 unless two conditions hold. First, the worker runs significantly more requests (B) than the least busy one
    (A): (B - A)^2 > z^2 (B + A), the test for two Poisson counts. It uses two standard deviations for two workers, and
    z^2 grows by 2 ln(N / 2) for N workers. Second, that many of its requests begin as this prompt does, up to the first
    block that the least busy worker lacks (or up to what is cached, where it lacks none). Only then will later requests
    use a copy, too.

    The price is what a copy saves: B - A requests could use it, and each costs the running streams and itself the
    decode externality, from the learned growth of steps. While that growth or the speeds are unknown, the price is the
    cost of the dearest candidate. Where a copy of the prefix costs less, the copy is made. Once the least busy worker
    has the whole prefix, the price is at most the time that the cached tokens save. Otherwise one block that all long
    prompts of a service share would outweigh a queue. This is the spill of smg 1.13 and of consistent hashing with
    bounded loads, with a price in place of a threshold. A worker that is busy for other reasons has no such price:
    moving a conversation off it costs a prefill that no other request would use.
    """
    if fleet.is_small:
        running = [view.running_requests for view in fleet.workers]
        least = min(running)
        usual = _usual(least, len(fleet))
        busier = [place for place, requests in enumerate(running) if requests > usual]
    else:
        least = int(fleet.running_requests.min())
        usual = _usual(least, len(fleet))
        busier = np.flatnonzero(fleet.running_requests > usual).tolist()
    return _prices_s(request, fleet, busier, least, usual) if busier else ()


def _prices_s(request: RequestView, fleet: FleetView, busier: list[int], least: int, usual: float) -> Price:
    lacked = _blocks(_calmest(fleet, least), request) + 1
    prices_s = np.zeros(len(fleet))
    for place in busier:
        view = fleet.worker(place)
        cached = _blocks(view, request)
        if fleet.running_share(view.id, request, min(lacked, cached)) * view.running_requests > usual:
            price_s = _price_s(view, fleet, least)
            prices_s[place] = price_s if cached >= lacked else min(price_s, _saved_s(view))
    if not prices_s.any():
        return ()
    return prices_s.tolist() if fleet.is_small else prices_s


def _calmest(fleet: FleetView, least: int) -> WorkerView:
    if fleet.is_small:
        return min([view for view in fleet.workers if view.running_requests == least], key=_uncached_tokens)
    places = np.flatnonzero(fleet.running_requests == least)
    return fleet.worker(int(places[fleet.uncached_tokens[places].argmin()]))


def _uncached_tokens(view: WorkerView) -> int:
    return view.uncached_tokens


def _usual(least: int, workers: int) -> float:
    """Return the largest count that is not significantly above `least`, the lowest of `workers` counts."""
    z_squared = 4.0 + 2.0 * log(max(1.0, workers / 2))
    return least + 0.5 * (z_squared + sqrt(z_squared * (z_squared + 8.0 * least)))


def _price_s(view: WorkerView, fleet: FleetView, least: int) -> float:
    if view.decode_externality_s:
        return view.decode_externality_s * (view.running_requests - least)
    first_token_s = fleet.queue_wait_s + fleet.kv_wait_s + fleet.prefill_s / (1.0 - fleet.utilisation)
    return float(first_token_s.max())


def _saved_s(view: WorkerView) -> float:
    """Return the time that the cached tokens save, at the pace of the uncached ones."""
    return view.prefill_s * view.cached_tokens / max(1, view.uncached_tokens)


def _blocks(view: WorkerView, request: RequestView) -> int:
    return view.cached_tokens // request.block_tokens if request.block_tokens else 0

"""The delay that a prefill causes to sessions that return to the worker's cache."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import ClassVar

import numpy as np

from policies.by_worker import ByWorker
from policies.marginal_cost.terms.term import Price, Term
from policies.view import Column, FleetView, LifecycleEvent, LifecycleEventKind, RequestView, WorkerId

WINDOW_S = 60.0
"""The memory, as long as that of the utilisation. Sessions that returned recently will probably return soon."""
_KEPT = 4_096
_REBASED_AT = 1e9
_UNTIED = (0.0, 0.0)


class AffinityExternality(Term):
    """Price a prefill by the delay of the requests that are tied to its worker.

    The next turn of a conversation, or the next step of an agent, finds its context on one worker. Any other worker
    would have to prefill it. The request is tied to its worker by the seconds that the cache saves over the next best
    worker.
    During a prefill of s seconds, a tied request waits s / 2 on average, or goes elsewhere and loses the saved seconds.
    Tied requests arrive at a rate lambda, so the prefill costs them lambda * s * min(s / 2, saved seconds). If all
    workers look idle, this price steers a long new prompt to a worker that no session needs at the moment.

    The price is scaled by the square of the share f of workers without a queued prefill. With probability f the
    returning request would have found its worker free, and with probability f this prompt finds another free worker.
    If all workers have queues, a prefill delays equally many requests anywhere, and the prefill externality covers
    that.

    Each process or replica counts only its own placements. With several of them the price is too small, but never too
    large.
    """

    meanings: ClassVar[Mapping[str, str]] = {
        "affinity_externality_s": "Cost of this prefill to sessions that come back to the worker's cache."
    }

    def __init__(self) -> None:
        self._tied: dict[WorkerId, tuple[float, float]] = {}
        """By worker: the number of tied arrivals and the seconds that the cache saved them. Later arrivals weigh more
        than 1 (`_scale`), so that old sums need no update."""
        self._since_s = 0.0
        self._by_worker = ByWorker(2, self._tied_to)

    def price(self, request: RequestView, fleet: FleetView) -> Price:
        """Return the delay that this prompt's prefill causes to returning sessions, by place; empty if there is none.

        The price of a worker without tied requests is 0.
        """
        if not self._tied:
            return ()
        free = _free(fleet)
        if not free:
            return ()
        share = free / len(fleet)
        per_s = share * share / (WINDOW_S * self._scale(fleet.now_s))
        if fleet.by_row:
            prices_s = []
            for view in fleet.workers:
                arrivals, saved_s = self._tied.get(view.id, _UNTIED)
                prices_s.append(per_s * view.prefill_s * min(0.5 * view.prefill_s * arrivals, saved_s))
            return prices_s
        arrivals_of, saved_s_of = self._by_worker.arrays(fleet.roster)
        own_s = fleet.prefill_s
        prices_of: Column = per_s * own_s * np.minimum(0.5 * own_s * arrivals_of, saved_s_of)
        return prices_of

    def _tied_to(self, worker: WorkerId) -> tuple[float, float]:
        return self._tied.get(worker, _UNTIED)

    def observe(self, event: LifecycleEvent) -> None:
        """Record a reservation and ignore other events."""
        placed, fleet, worker = event.placed, event.fleet, event.worker
        if event.kind is not LifecycleEventKind.RESERVED or placed is None or fleet is None or not placed.learned:
            return
        saved_s = _least_elsewhere_s(fleet, worker) - placed.prefill_s
        if saved_s <= 0.0:
            return
        scale = self._scale(event.now_s)
        if scale > _REBASED_AT:
            self._tied = {name: (count / scale, total_s / scale) for name, (count, total_s) in self._tied.items()}
            self._since_s, scale = event.now_s, 1.0
            self._by_worker.clear()
        arrivals, total_s = self._tied.pop(worker, (0.0, 0.0))
        self._tied[worker] = arrivals + scale, total_s + scale * saved_s
        self._by_worker.changed(worker)
        if len(self._tied) > _KEPT:
            oldest = next(iter(self._tied))
            del self._tied[oldest]
            self._by_worker.changed(oldest)

    def __deepcopy__(self, memo: dict[int, object]) -> AffinityExternality:
        copy = AffinityExternality()
        copy._tied, copy._since_s = self._tied.copy(), self._since_s
        return copy

    def _scale(self, now_s: float) -> float:
        """Return the weight of an arrival now, relative to one at `_since_s`."""
        return exp(min((now_s - self._since_s) / WINDOW_S, 600.0))


def _free(fleet: FleetView) -> int:
    """Return the number of workers without a queued prefill."""
    if fleet.by_row:
        return len([view for view in fleet.workers if not view.queued_requests])
    return len(fleet) - int(np.count_nonzero(fleet.queued_requests))


def _least_elsewhere_s(fleet: FleetView, worker: WorkerId) -> float:
    """Return the shortest prefill on any other worker; 0 if there is none."""
    if fleet.by_row:
        return min([view.prefill_s for view in fleet.workers if view.id != worker], default=0.0)
    place = fleet.roster.places.get(worker)
    others_s = fleet.prefill_s if place is None else np.delete(fleet.prefill_s, place)
    return float(others_s.min()) if len(others_s) else 0.0

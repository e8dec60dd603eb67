"""The delay that a prefill causes to sessions that return to the worker's cache."""

from __future__ import annotations

from math import exp

from policies.view import FleetView, LifecycleEvent, LifecycleEventKind, WorkerId

WINDOW_S = 60.0
"""The memory, as long as that of the utilisation. Sessions that returned recently will probably return soon."""
_KEPT = 4_096
_REBASED_AT = 1e9


class AffinityExternality:
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

    def __init__(self) -> None:
        self._tied: dict[WorkerId, tuple[float, float]] = {}
        """By worker: the number of tied arrivals and the seconds that the cache saved them. Later arrivals weigh more
        than 1 (`_scale`), so that old sums need no update."""
        self._since_s = 0.0

    def prices_s(self, fleet: FleetView) -> dict[WorkerId, float]:
        """Return the delay that this prompt's prefill causes to returning sessions, for each worker that has tied
        requests."""
        tied, workers = self._tied, fleet.workers
        free = len([view for view in workers if not view.queued_requests])
        if not tied or not free:
            return {}
        share = free / len(workers)
        per_s = share * share / (WINDOW_S * self._scale(fleet.now_s))
        prices_s = {}
        for view in workers:
            found = tied.get(view.id)
            if found is not None:
                arrivals, saved_s = found
                prices_s[view.id] = per_s * view.prefill_s * min(0.5 * view.prefill_s * arrivals, saved_s)
        return prices_s

    def observe(self, event: LifecycleEvent) -> None:
        """Record a reservation and ignore other events."""
        placed, fleet, worker = event.placed, event.fleet, event.worker
        if event.kind is not LifecycleEventKind.RESERVED or placed is None or fleet is None or not placed.learned:
            return
        elsewhere_s = [view.prefill_s for view in fleet.workers if view.id != worker]
        saved_s = min(elsewhere_s) - placed.prefill_s if elsewhere_s else 0.0
        if saved_s <= 0.0:
            return
        scale = self._scale(event.now_s)
        if scale > _REBASED_AT:
            self._tied = {name: (count / scale, total_s / scale) for name, (count, total_s) in self._tied.items()}
            self._since_s, scale = event.now_s, 1.0
        arrivals, total_s = self._tied.pop(worker, (0.0, 0.0))
        self._tied[worker] = arrivals + scale, total_s + scale * saved_s
        if len(self._tied) > _KEPT:
            del self._tied[next(iter(self._tied))]

    def _scale(self, now_s: float) -> float:
        """Return the weight of an arrival now, relative to one at `_since_s`."""
        return exp(min((now_s - self._since_s) / WINDOW_S, 600.0))

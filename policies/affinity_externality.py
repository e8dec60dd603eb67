"""Requests that come back to what a worker keeps for them, and what a prefill there costs them."""

from __future__ import annotations

from math import exp

from policies.view import FleetView, LifecycleEvent, LifecycleEventKind, WorkerId

WINDOW_S = 60.0
"""Memory, as that of the utilisation: who came back of late is who comes back soon."""
_KEPT = 4_096
_REBASED_AT = 1e9


class AffinityExternality:
    """Prices a prefill by the wait of those who have no choice but to come back to the worker that it runs on.

    A turn of a conversation, or an agent's next step, finds on one worker what it would have to compute anew on any
    other: it is tied to that worker, by as many seconds as that saves over the next best one. Where a prefill of s
    seconds runs there, those who come meanwhile wait s / 2 on average, or they leave and lose those seconds. They come
    at a rate of lambda, so the prefill takes lambda * s * min(s / 2, what they save) from them. It is what steers a
    long new prompt to a worker that nobody needs at the moment, where all of them look idle.

    That counts as far as workers have no prefill waiting: with a share f of them, the one who comes back would have
    found the worker free with a chance of f, and there is another one for this prompt with a chance of f. Where all
    have queues the work delays as many wherever it is done, and 1 / (1 - rho) says so.

    With several processes or replicas each counts what it has placed itself: the price is too small then, never too
    large.
    """

    def __init__(self) -> None:
        self._tied: dict[WorkerId, tuple[float, float]] = {}
        """Arrivals, and the seconds that they save; older ones weigh less, and newer ones more than 1 (`_scale`)."""
        self._since_s = 0.0

    def prices_s(self, fleet: FleetView) -> dict[WorkerId, float]:
        """What this prompt's prefill takes from those who come back meanwhile; workers without any are left out."""
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
        """Take note of a booking; other edges do not matter here."""
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
        """What an arrival counts now, against one at `_since_s`: so that nothing has to be aged."""
        return exp(min((now_s - self._since_s) / WINDOW_S, 600.0))

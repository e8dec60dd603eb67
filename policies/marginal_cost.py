"""The default rule: place each request where it delays everyone least, in seconds."""

from __future__ import annotations

import random
from collections.abc import Mapping
from math import log
from typing import ClassVar

from policies.params import Params
from policies.terms import Terms
from policies.turns import Turns
from policies.view import Decision, Edge, FleetView, RequestView, WorkerView


class MarginalCost:
    """Least ``C = v + s / (1 - rho) + crowd``; ties by running requests, then in turn.

    v is the wait before this prompt starts, s the time its uncached tokens take: together the request's own time to
    first token. Prefill work also delays whoever comes next, and the more so the busier the worker is: for Poisson
    arrivals at rate lambda, s seconds of work in an M/G/1 queue delay later ones by about lambda * s * v / (1 - rho)
    (the first step of policy iteration, Krishnan 1990), of which the factor 1 / (1 - rho) on s is the cheap form.
    At rest it is LPWL in seconds; near saturation reuse counts more and more.

    Two things keep a hot prefix from piling onto the one worker that has it, while that worker's prefill queue is
    short and only its decodes are many:

    * Ties. Many requests with one system prompt cost the same wherever it is held, and v and s are estimates with
      noise; the luckiest estimate would get all of them. So candidates whose costs differ by less than their
      standard errors together are equal, if they leave no more tokens uncached than the cheapest does: tokens are
      counted and not estimated, so reuse is never given up to noise. Among equals the fewest running requests win.
    * `crowd`, zero but on a worker with significantly more running requests than the least busy one: B against A,
      with (B - A)^2 > z^2 (B + A), the test for two Poisson counts, at two standard deviations for two workers and
      z^2 growing by 2 ln(N / 2) for N, as chance has more pairs to work with. There it is the most that the crowd can
      cost this request: a share 1 - A / B of its decode time, if steps lengthened in proportion to their batch (as
      much as the dearest candidate costs, while nothing is known of decode times). Where copying the prefix costs
      less than that, it is copied, and from then on both workers tie. It is the spill of smg 1.13 and of consistent
      hashing with bounded loads, with a price in place of a cliff.
    """

    params_type: ClassVar[type[Params]] = Params

    def __init__(self, params: Params, rng: random.Random) -> None:
        self._turns = Turns()

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Rank by cost, the winner of the ties first."""
        last = self._turns.last
        crowd = _Crowd(request, fleet)
        priced = [
            (_cost(view) + crowd.price_s(view), view.running_requests, last(view.id), view) for view in fleet.workers
        ]
        priced.sort(key=_order)
        cheapest_s, _, _, cheapest = priced[0]
        equals = [entry for entry in priced if _equal(entry[0], entry[3], cheapest_s, cheapest)]
        chosen = min(equals, key=_turn)
        if chosen is not priced[0]:
            priced.remove(chosen)
            priced.insert(0, chosen)
        return Decision(
            tuple(entry[3].id for entry in priced),
            "least added delay" if len(equals) == 1 else f"least busy of {len(equals)} with equal added delay",
            tuple(entry[0] for entry in priced),
            "s" if cheapest.learned else "tokens",
            Terms(fleet.workers, crowd.terms),
        )

    def observe(self, edge: Edge) -> None:
        """Advance the turn."""
        self._turns.observe(edge)


_Priced = tuple[float, int, int, WorkerView]


class _Crowd:
    """Which workers are crowded, and what that costs. Bound to one decision."""

    __slots__ = ("_dearest_s", "_decode_s", "_least", "_z_squared")

    def __init__(self, request: RequestView, fleet: FleetView) -> None:
        workers = fleet.workers
        self._least = min([view.running_requests for view in workers])
        self._z_squared = 4.0 + 2.0 * log(max(1.0, len(workers) / 2))
        self._decode_s = request.decode_s if workers[0].learned else 0.0
        self._dearest_s = 0.0 if self._decode_s else max([_cost(view) for view in workers])

    def price_s(self, view: WorkerView) -> float:
        running, least = view.running_requests, self._least
        if (running - least) ** 2 <= self._z_squared * (running + least):
            return 0.0
        return self._decode_s * (1.0 - least / running) if self._decode_s else self._dearest_s

    def terms(self, view: WorkerView) -> Mapping[str, float]:
        own_s = view.prefill_s
        return {
            "backlog": view.backlog_s,
            "prefill": own_s,
            "delay_to_later": own_s / (1.0 - view.utilisation) - own_s,
            "crowd": self.price_s(view),
            "error": view.error_s,
        }


def _cost(view: WorkerView) -> float:
    return view.backlog_s + view.prefill_s / (1.0 - view.utilisation)


def _order(entry: _Priced) -> tuple[float, int, int]:
    return entry[:3]


def _turn(entry: _Priced) -> tuple[int, int]:
    return entry[1:3]


def _equal(cost_s: float, view: WorkerView, cheapest_s: float, cheapest: WorkerView) -> bool:
    noise_s = view.error_s + cheapest.error_s
    return cost_s - cheapest_s <= noise_s and view.uncached_tokens <= cheapest.uncached_tokens

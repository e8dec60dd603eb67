"""The waiting requests of one model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, product
from math import inf
from random import Random
from typing import Generic, TypeVar

from policies.view import WorkerId
from router.placement.admission.classes import Claim, RequestClass
from router.placement.admission.cost import Cost
from router.placement.admission.credit import Credits
from router.placement.admission.lines import PASSED_OVER, ClassLine, Waiting
from router.placement.admission.prediction import Bias, DrainRate, EarlyRefusal, retry_after_s
from router.placement.admission.room import ClassPart, Room
from router.placement.fleet.endpoints import Candidate

T = TypeVar("T", bound=Hashable)
STARVED_SHARE = 0.05
"""The share of a class without one whose first request has waited for too long."""
MARGIN = 1.03
"""Predictions are wrong by about this factor, and a request that is served too late helps nobody."""
_OFFERS = 3
"""Requests of a class that are offered in one turn although the one before found no room."""
_GONE_KEPT = 64
"""Requests that have left and are kept until their time would be over, beside as many as wait."""


class AdmissionQueue(Generic[T]):
    """Orders the requests of one model, and says which may go to a worker now."""

    def __init__(self, classes: Mapping[str, RequestClass], room: Room, rng: Random) -> None:
        self._lines: dict[str, ClassLine[T]] = {name: ClassLine(one) for name, one in classes.items()}
        self._room = room
        self._rng = rng
        self._credits = Credits()
        self._waiting: dict[T, Waiting[T]] = {}
        self._expiry: list[tuple[float, int, Waiting[T]]] = []
        self._numbers = count()
        self._drain = DrainRate()
        self._drains = {name: DrainRate() for name in classes}
        self._bias = {name: Bias() for name in classes}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, item: T) -> bool:
        return item in self._waiting

    def first_token_s(self, claim: Claim, cost: Cost, workers: int) -> tuple[float, bool]:
        """Return the time to first token of a request that arrives now, and whether the drain rate was measured.

        Until there is a measured rate, each of `workers` does one second of work per second.
        """
        line, measured = self._lines[claim.of.name], self._drain.per_s
        ahead_s = line.ahead_of(claim)
        if not claim.of.share:
            own = self._drains[claim.of.name].per_s
            return (ahead_s / own if own else 0.0) + cost.first_token_s, own is not None
        others = [other for other in self._lines.values() if other.requests and other is not line and other.of.share]
        shares = claim.of.share + sum(other.of.share for other in others)
        all_s = ahead_s + sum(other.seconds for other in others)
        wait_s = min(ahead_s * shares / claim.of.share, all_s) / (measured or float(max(1, workers)))
        return wait_s + cost.first_token_s, measured is not None

    def refusal(self, claim: Claim, cost: Cost, workers: int, now_s: float) -> EarlyRefusal | None:
        """Return why a request that arrives now is refused; None if it may wait."""
        longest_s = claim.longest_wait_s
        if longest_s == inf:
            return None
        self._pass(now_s)
        first_token_s, measured = self.first_token_s(claim, cost, workers)
        excess_s = first_token_s * self._bias[claim.of.name].factor * MARGIN - longest_s
        if excess_s <= 0.0:
            return None
        return EarlyRefusal(
            "predicted-wait", longest_s + excess_s, retry_after_s(excess_s, self._rng) if measured else None
        )

    def expected_s(self, claim: Claim, cost: Cost, workers: int, now_s: float) -> float:
        """Return `first_token_s`, corrected by what earlier predictions missed."""
        self._pass(now_s)
        return self.first_token_s(claim, cost, workers)[0] * self._bias[claim.of.name].factor

    def place(self, claim: Claim) -> int:
        """Return how many requests of the same class a request that arrives now finds before it."""
        return self._lines[claim.of.name].requests

    def enter(self, item: T, claim: Claim, cost: Cost, arrived_s: float, now_s: float, workers: int = 1) -> Waiting[T]:
        """Let a request wait, which must not be waiting already."""
        self._pass(now_s)
        return self._put(self.waiting(item, claim, cost, arrived_s, now_s, workers))

    def waiting(
        self, item: T, claim: Claim, cost: Cost, arrived_s: float, now_s: float, workers: int = 1
    ) -> Waiting[T]:
        """Return the place of a request that does not wait yet."""
        key = (arrived_s + claim.due_after_s, arrived_s, next(self._numbers))
        return Waiting(item, claim, cost, now_s, key, self.first_token_s(claim, cost, workers)[0])

    def _put(self, one: Waiting[T]) -> Waiting[T]:
        self._waiting[one.item] = one
        self._lines[one.claim.of.name].enter(one)
        if one.expires_s < inf:
            heappush(self._expiry, (one.expires_s, next(self._numbers), one))
        return one

    def take_back(self, one: Waiting[T], seconds: float, now_s: float) -> None:
        """Let a request that gives way wait again at its place, as if it had not been charged its `seconds`."""
        self._pass(now_s)
        self._settle(one.claim, -seconds)
        for drain in (self._drain, self._drains[one.claim.of.name]):
            drain.taken_back(seconds)
        one.gave_way += 1
        self._put(one)

    def leave(self, item: T, now_s: float) -> Waiting[T] | None:
        """Take a request out, because it is dispatched or its client has left; nothing is charged."""
        one = self._waiting.get(item)
        if one is not None:
            self._pass(now_s)
            del self._waiting[item]
            self._lines[one.claim.of.name].leave(one)
            if len(self._expiry) > 2 * len(self._waiting) + _GONE_KEPT:
                self._expiry = [entry for entry in self._expiry if not self._gone(entry[2])]
                heapify(self._expiry)
        return one

    def expired(self, now_s: float) -> list[Waiting[T]]:
        """Take out the requests that have waited for too long, and return them."""
        found: list[Waiting[T]] = []
        while self._expiry and (self._expiry[0][0] <= now_s or self._gone(self._expiry[0][2])):
            one = heappop(self._expiry)[2]
            if not self._gone(one) and self.leave(one.item, now_s) is not None:
                found.append(one)
        return found

    def _gone(self, one: Waiting[T]) -> bool:
        return self._waiting.get(one.item) is not one

    def came(self, one: Waiting[T], now_s: float) -> None:
        """Learn from the first token of a request that has waited."""
        self._bias[one.claim.of.name].observe(one.first_token_s, now_s - one.since_s)

    def charge(self, claim: Claim, seconds: float, now_s: float) -> None:
        """Charge a request that was dispatched."""
        self._pass(now_s)
        self._drain.worked(seconds)
        self._drains[claim.of.name].worked(seconds)
        if not self._lines[claim.of.name].requests:
            self._lines[claim.of.name].credits.refill((claim.tenant,))
        self._lines[claim.of.name].credits.charge(claim.tenant, seconds, claim.weight)
        self._lines[claim.of.name].parts.began(claim.tenant, seconds / claim.weight, now_s)
        self._credits.charge(claim.of.name, seconds, claim.of.share or STARVED_SHARE)

    def part(self, claim: Claim, now_s: float) -> ClassPart:
        return claim.of.name, self._lines[claim.of.name].parts.beyond(claim.tenant, now_s)

    def settle(self, claim: Claim, charged_s: float, seconds: float) -> None:
        """Correct the charge of a request that has ended by `seconds`."""
        self._lines[claim.of.name].parts.ended(claim.tenant, charged_s / claim.weight)
        self._settle(claim, seconds)

    def _settle(self, claim: Claim, seconds: float) -> None:
        self._lines[claim.of.name].credits.settle(claim.tenant, seconds, claim.weight)
        self._credits.settle(claim.of.name, seconds, claim.of.share or STARVED_SHARE)

    def turn(self, candidates: Sequence[Candidate], now_s: float, offer: Callable[[T], Candidate | None]) -> float:
        """Offer requests in order until no worker has room. Return when there may be room again; infinite if unknown.

        `offer` dispatches a request and returns its worker, or None if it stays; it must call `leave` and `charge`.
        Without candidates it is offered all requests, which leave because no worker is ready.
        """
        if not candidates:
            for item in list(self._waiting):
                offer(item)
            return inf
        open_: dict[ClassPart, dict[WorkerId, None]] = {}
        wait_s = inf
        more = True
        while more and self._waiting:
            more = False
            for line, beyond in product(self._order(now_s), (False, True)):
                first, part = line.first(now_s, beyond=beyond), (line.of.name, beyond)
                if first and part not in open_:
                    open_[part], missing_s = self._room.open(part, candidates, now_s)
                    wait_s = min(wait_s, missing_s)
                placed = self._offered(first, open_[part], offer) if first and open_[part] else None
                if placed is not None:
                    self._taken(open_, placed, now_s)
                    more = True
                    break
        return wait_s

    def first(self, now_s: float) -> Waiting[T] | None:
        """Return the request whose turn is next."""
        lines = (line.first(now_s, beyond=beyond) for line, beyond in product(self._order(now_s), (False, True)))
        return next((first[0] for first in lines if first), None)

    def goes_before(self, one: RequestClass, other: RequestClass) -> bool:
        """Return whether a class goes before a later one, as far as both have used of their shares."""
        used = self._credits
        return not other.share or used.has(one.name) or used.spent_s(one.name) <= used.spent_s(other.name)

    def _order(self, now_s: float) -> list[ClassLine[T]]:
        """Return the classes that wait, in the order of their turns."""
        waiting = [line for line in self._lines.values() if line.requests]
        starved = [line for line in waiting if not line.of.share and now_s - line.oldest_s() >= line.of.starvation_s]
        sharing = [line for line in waiting if line.of.share or line in starved]
        self._credits.refill([line.of.name for line in sharing])
        return sorted(waiting, key=lambda line: (line not in sharing, not self._credits.has(line.of.name)))

    def _offered(
        self, first: list[Waiting[T]], open_: Mapping[WorkerId, None], offer: Callable[[T], Candidate | None]
    ) -> Candidate | None:
        for one in _by_prefix(first, open_)[:_OFFERS]:
            placed = offer(one.item)
            if placed is not None:
                return placed
        return None

    def _taken(self, open_: Mapping[ClassPart, dict[WorkerId, None]], candidate: Candidate, now_s: float) -> None:
        for part, workers in open_.items():
            if candidate.id in workers and not self._room.has(part, candidate, 1, now_s):
                del workers[candidate.id]

    def _pass(self, now_s: float) -> None:
        self._drain.passed(now_s, backlog=bool(self._waiting))
        for name, drain in self._drains.items():
            drain.passed(now_s, backlog=bool(self._lines[name].requests))

    def lines(self) -> Iterable[ClassLine[T]]:
        return self._lines.values()


def _by_prefix(first: list[Waiting[T]], open_: Mapping[WorkerId, None]) -> list[Waiting[T]]:
    """Return the requests with the earliest first whose prefix is on a worker with room, if there is one.

    A request that has been passed over too often goes first.
    """
    for place, one in enumerate(first):
        if (one.passed >= PASSED_OVER and not place) or one.cost.home is None or one.cost.home in open_:
            for earlier in first[:place]:
                earlier.passed += 1
            return [one, *first[:place], *first[place + 1 :]]
    return first

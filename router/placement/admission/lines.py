"""The waiting requests of one class, by tenant."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge, nsmallest
from itertools import islice
from typing import Generic, TypeVar

from router.placement.admission.classes import Claim, RequestClass
from router.placement.admission.cost import Cost
from router.placement.admission.credit import Credits
from router.placement.admission.parts import Parts

T = TypeVar("T")
PASSED_OVER = 16
"""How often requests whose prefix is cached on a free worker may go before another one, and how many are looked at."""


@dataclass(slots=True, eq=False)
class Waiting(Generic[T]):
    """One waiting request. `key` orders it within its tenant: the time at which its first token is due, then arrival.

    A class without a service level has no due times, so it is in order of arrival. The wait counts from `since_s`: an
    answer that goes on elsewhere has arrived long before.
    """

    item: T
    claim: Claim
    cost: Cost
    since_s: float
    key: tuple[float, float, int]
    first_token_s: float
    """The time to first token that was predicted when the wait began."""
    passed: int = 0
    gave_way: int = 0
    """How often it has left its worker for a request of an earlier class."""

    @property
    def expires_s(self) -> float:
        return self.since_s + self.claim.longest_wait_s


@dataclass(slots=True, eq=False)
class TenantLine(Generic[T]):
    """The waiting requests of one tenant, in order, and their cost in seconds."""

    weight: float
    keys: list[tuple[float, float, int]] = field(default_factory=list)
    waiting: dict[tuple[float, float, int], Waiting[T]] = field(default_factory=dict)
    seconds: float = 0.0

    def enter(self, one: Waiting[T]) -> None:
        insort(self.keys, one.key)
        self.waiting[one.key] = one
        self.weight = one.claim.weight
        self.seconds += one.cost.seconds

    def leave(self, one: Waiting[T]) -> None:
        del self.keys[bisect_left(self.keys, one.key)]
        del self.waiting[one.key]
        self.seconds = self.seconds - one.cost.seconds if self.keys else 0.0

    def first(self) -> Iterator[Waiting[T]]:
        return (self.waiting[key] for key in islice(self.keys, PASSED_OVER))


class ClassLine(Generic[T]):
    """The waiting requests of one class. Tenants with credit go first, and each tenant's requests are in order."""

    def __init__(self, of: RequestClass) -> None:
        self.of = of
        self.credits = Credits()
        self.parts = Parts(self.credits)
        self.tenants: dict[str, TenantLine[T]] = {}
        self.requests = 0
        self.seconds = 0.0

    def enter(self, one: Waiting[T]) -> None:
        line = self.tenants.get(one.claim.tenant)
        if line is None:
            line = self.tenants[one.claim.tenant] = TenantLine(one.claim.weight)
        line.enter(one)
        self.requests += 1
        self.seconds += one.cost.seconds

    def leave(self, one: Waiting[T]) -> None:
        line = self.tenants[one.claim.tenant]
        line.leave(one)
        if not line.keys:
            del self.tenants[one.claim.tenant]
        self.requests -= 1
        self.seconds = self.seconds - one.cost.seconds if self.tenants else 0.0

    def first(self, now_s: float, *, beyond: bool) -> list[Waiting[T]]:
        """Return the requests that may go next, in order: of tenants with credit, the earliest first.

        They are those of the tenants that are `beyond` their part, or of the others.
        """
        apart = self.parts.all_beyond(now_s)
        tenants = self.tenants
        if apart or beyond:
            tenants = {name: line for name, line in tenants.items() if (name in apart) == beyond}
        self.credits.refill(tenants)
        with_credit = [line for name, line in tenants.items() if self.credits.has(name)]
        if len(with_credit) > PASSED_OVER:
            with_credit = nsmallest(PASSED_OVER, with_credit, key=_first_key)
        return list(islice(merge(*(line.first() for line in with_credit), key=_key), PASSED_OVER))

    def oldest_s(self) -> float:
        """Return when the longest wait began among the requests that are first of their tenant."""
        return min(next(line.first()).since_s for line in self.tenants.values())

    def ahead_of(self, claim: Claim) -> float:
        """Return the seconds of work that the class does before a new request of `claim`.

        Either all of its work is before it, or its tenant's own, while the other tenants take their parts beside it.
        """
        own = self.tenants.get(claim.tenant)
        own_s = 0.0 if own is None else own.seconds
        weights = sum(line.weight for name, line in self.tenants.items() if name != claim.tenant)
        return min(self.seconds, own_s * (weights + claim.weight) / claim.weight + self._turn_s(claim))

    def _turn_s(self, claim: Claim) -> float:
        """Return the work of other tenants with credit that may go before a tenant's first request."""
        others = sum(1 for name in self.tenants if name != claim.tenant and self.credits.has(name))
        return self.credits.quantum_s * others


def _first_key(line: TenantLine[T]) -> tuple[float, float, int]:
    return line.keys[0]


def _key(one: Waiting[T]) -> tuple[float, float, int]:
    return one.key

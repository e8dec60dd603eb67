"""Which workers have room for a request of a class: the work ahead of it there is less than the headroom.

The gateway's own ledger decides. A scrape only adds load from elsewhere, whose weight fades when scrapes stop, so stale
metrics never stop dispatch. A worker without requests always has room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol, TypeAlias

from policies.view import WorkerId
from router.placement.admission.classes import RequestClass
from router.placement.fleet.endpoints import Candidate
from router.placement.load.fleet_load import AheadOfRequest
from router.placement.load.running import LoadReservation
from router.placement.load.worker_load import WorkerLoad

HEADROOM_S = 0.2
"""Prefill work that may wait in a worker. It keeps the worker busy until the gateway has seen the end of a prefill."""
BEYOND_PART = 0.75
"""The part of its class's room that a tenant has that runs more than its part beside others."""

ClassPart: TypeAlias = tuple[str, bool]
"""A class by name, and whether it is about tenants beyond their part."""


@dataclass(frozen=True, slots=True)
class LeftByOthers:
    """What others leave to requests of a class: a part of each worker, and the inter-token time that they need."""

    part: float
    tpot_s: float

    @classmethod
    def of(cls, one: RequestClass, classes: Iterable[RequestClass], *, beyond: bool) -> LeftByOthers:
        """Return what is left; less if the tenant is `beyond` its part, as then others of its own class count, too."""
        others = [other for other in classes if other is not one]
        part = max(0.0, 1.0 - sum(other.floor for other in others)) * (BEYOND_PART if beyond else 1.0)
        slow = [other.tpot_s for other in (*others, one) if other.tpot_s is not None and (beyond or other is not one)]
        return cls(part, min(slow, default=inf))


class AheadOnWorkers(Protocol):
    """The load that a request would find: that of `WorkerLoads`."""

    def ahead(
        self, candidate: Candidate, now_s: float, without: Collection[LoadReservation] = ()
    ) -> AheadOfRequest: ...

    def of(self, candidate: Candidate) -> WorkerLoad: ...


class Room:
    """The room that a fleet has for each class. `classes` are all that are configured."""

    def __init__(self, loads: AheadOnWorkers, classes: Iterable[RequestClass], headroom_s: float = HEADROOM_S) -> None:
        classes = tuple(classes)
        self._loads = loads
        self._headroom_s = headroom_s
        self._limits: Mapping[ClassPart, LeftByOthers] = {
            (one.name, beyond): LeftByOthers.of(one, classes, beyond=beyond)
            for one in classes
            for beyond in (False, True)
        }

    def has(self, part: ClassPart, candidate: Candidate, uncached_tokens: int, now_s: float) -> bool:
        """Return whether the worker may take a request now."""
        return not self.missing_s(part, self._loads.ahead(candidate, now_s), candidate, uncached_tokens)

    def missing_s(self, part: ClassPart, ahead: AheadOfRequest, candidate: Candidate, uncached_tokens: int) -> float:
        """Return for how long the worker has no room as far as its prefills show; infinite if something else lacks."""
        if not ahead.requests:
            return 0.0
        limits = self._limits[part]
        capacity_tokens = candidate.capacity_tokens * limits.part
        if capacity_tokens and ahead.held_tokens + uncached_tokens > capacity_tokens:
            return inf
        if limits.tpot_s < inf and ahead.tpot_s(uncached_tokens) > limits.tpot_s:
            return inf
        return max(0.0, ahead.work_s - self._headroom_s * limits.part)

    def open(
        self, part: ClassPart, candidates: Iterable[Candidate], now_s: float
    ) -> tuple[dict[WorkerId, None], float]:
        """Return the workers with room for a short prompt, and when the next one may have some."""
        found: dict[WorkerId, None] = {}
        wait_s = inf
        for candidate in candidates:
            missing_s = self.missing_s(part, self._loads.ahead(candidate, now_s), candidate, 1)
            if missing_s:
                wait_s = min(wait_s, missing_s)
            else:
                found[candidate.id] = None
        return found, wait_s

"""Measures decisions from outside: the core has no clock of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from policies.view import Policy
from router.core.dispatcher import Dispatcher, DispatchObserver
from router.core.edges import Request
from router.core.fleet import Fleet
from router.core.others import SharedLedger
from router.core.tickets import Hold, Reject, Ticket
from router.prefix.residency import ResidencyMap


class TimedDispatcher(Dispatcher):
    """A dispatcher that tells `took` how many seconds each `dispatch` needed."""

    def __init__(
        self,
        fleet: Fleet,
        residency: ResidencyMap,
        policy: Policy,
        *,
        policy_name: str,
        took: Callable[[float], None],
        policy_params: Mapping[str, Any] | None = None,
        decisions_kept: int = 1_000,
        observer: DispatchObserver | None = None,
        ledger: SharedLedger | None = None,
    ) -> None:
        super().__init__(
            fleet,
            residency,
            policy,
            policy_name=policy_name,
            policy_params=policy_params,
            decisions_kept=decisions_kept,
            observer=observer,
            ledger=ledger,
        )
        self._took = took

    def dispatch(self, request: Request, now_s: float) -> Ticket | Hold | Reject:
        """Choose a candidate and book the request there, in one step."""
        started_s = time.perf_counter()
        placed = super().dispatch(request, now_s)
        self._took(time.perf_counter() - started_s)
        return placed

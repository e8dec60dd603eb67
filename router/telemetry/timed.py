"""Measures decisions from outside: the core has no clock of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from policies.view import Policy
from router.core.dispatcher import Dispatcher
from router.core.edges import Request
from router.core.fleet import Fleet
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
        took: Callable[[float], None],
        **options: Any,
    ) -> None:
        super().__init__(fleet, residency, policy, **options)
        self._took = took

    def dispatch(self, request: Request, now_s: float) -> Ticket | Hold | Reject:
        """Choose a candidate and book the request there, in one step."""
        started_s = time.perf_counter()
        placed = super().dispatch(request, now_s)
        self._took(time.perf_counter() - started_s)
        return placed

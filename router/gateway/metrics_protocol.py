"""What the gateway tells the metrics. `router.telemetry.metrics` implements it, tests count with it.

All calls come from the event loop's thread and must be cheap: none may block, raise or keep its arguments.
Durations are seconds. `route` is one of the patterns in `paths` (``/v1/chat/completions``,
``/v1/responses/{id}``, ...), ``local`` for what the gateway answers itself or ``unknown``, so its number is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from router.placement.lifecycle_events import FailurePoint


class GatewayMetrics(Protocol):
    """Counters and observations of the data plane. Gauges are read from `Gateway.statistics()`."""

    def request_ended(self, route: str, status: int, duration_s: float) -> None:
        """A response ended (`status` as the client saw it, 499 when it left before one), last byte in to last out."""
        ...

    def error(self, code: str, phase: str) -> None:
        """We answered with error `code` (`ErrorSpec.code`), in phase ``request``, ``before_first`` or ``stream``."""
        ...

    def first_event(self, route: str, ttft_s: float) -> None:
        """First real event (streams) or first body byte, since the request's last byte came in."""
        ...

    def gaps(self, gaps_s: Sequence[float]) -> None:
        """Gaps between consecutive reads of event streams (inter-token latency), up to 32 per call."""
        ...

    def identified(self, wait_s: float, source: str) -> None:
        """Time to parse and identify one routed request; `source` is a `PromptSource` or ``none``."""
        ...

    def decision_took(self, duration_s: float) -> None:
        """A worker was chosen and booked for a request, or none could be, or it is to wait for one. Decisions after a
        failure are not timed."""
        ...

    def queued(self, wait_s: float, placed: bool) -> None:
        """A request waited because no worker was ready; `placed` tells whether one came in time."""
        ...

    def held(self, wait_s: float) -> None:
        """The policy kept a request back for so long, until it went to a worker after all (or was turned away)."""
        ...

    def retried(self, phase: FailurePoint) -> None:
        """An attempt failed in `phase` and another worker got the request."""
        ...

    def redialled(self) -> None:
        """A pooled connection had died idle; the same worker got the request on a fresh one."""
        ...

    def worker_died(self, outcome: str) -> None:
        """A worker died with requests before their first token: ``blamed`` for it, or too many (``ambiguous``)."""
        ...

    def client_aborted(self, phase: str) -> None:
        """The client left, in phase ``request``, ``before_first`` or ``stream``."""
        ...

    def let_in(self, key_name: str) -> None:
        """A request brought the API key of this name."""
        ...

    def reloaded(self, what: str, ok: bool) -> None:
        """Files behind `what` (``api_keys``, ``tls``, ...) had changed and were read again, or could not be used."""
        ...

    def relayed(self, request_bytes: int, response_bytes: int) -> None:
        """Body bytes taken from a client and response bytes written to it, once per request."""
        ...

"""The interface from the gateway to its metrics. `router.telemetry.metrics` implements it.

All calls come from the event loop's thread. They must be cheap, and must not block, raise or keep their arguments.
Durations are seconds. `labels` are the path, the route and the model of a request. The path is a pattern of
`http.routes` (``/v1/responses/{id}``, ...), ``local`` for replies of the gateway itself, or ``unknown``, and the model
is one that the fleet lists, or ``other``, so that the number of series is bounded. `trace_id` is set for requests that
are traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from router.placement.request import FailurePoint

Labels = tuple[str, str, str]


class GatewayMetrics(Protocol):
    """Counters and observations of the data plane. Gauges are read from `Gateway.statistics()`."""

    def request_ended(self, labels: Labels, status: int, duration_s: float, trace_id: str | None = None) -> None:
        """A response ended. `status` is the client's view, 499 if the client left before its end.

        `duration_s` is the time from the request's last byte to the response's last byte.
        """

    def error(self, code: str, phase: str) -> None:
        """The gateway sent error `code` (`ErrorSpec.code`). `phase`: ``request``, ``before_first`` or ``stream``."""

    def route_error(self, labels: Labels, phase: str) -> None: ...

    def first_event(self, labels: Labels, ttft_s: float, trace_id: str | None = None) -> None:
        """Time from the request's last byte to the first real event (streams) or the first body byte."""

    def gaps(self, gaps_s: Sequence[float], labels: Labels) -> None:
        """Gaps between consecutive reads of an event stream (inter-token latency), up to 32 per call."""

    def lengths(self, labels: Labels, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """Tokens of an answered request's prompt, and of its answer if that is complete; None if not known."""

    def reported(self, labels: Labels, prompt_tokens: int, cached_tokens: int) -> None: ...

    def identified(self, wait_s: float, source: str) -> None:
        """Time to parse and identify one request. `source` is a `PromptSource` or ``none``."""

    def decision_took(self, duration_s: float) -> None:
        """Duration of one call for a worker, whatever its outcome. A request that waits makes several.

        Retries are not timed.
        """

    def queued(self, wait_s: float, placed: bool) -> None:
        """A request left the no-worker queue. `placed`: a worker became ready in time."""

    def held(self, wait_s: float) -> None:
        """A request left the policy's hold, to a worker or with an error."""

    def service_level(self, route: str, target: str, met: bool) -> None:
        """A request met or missed a service level; `target` is ttft or tpot."""

    def retried(self, point: FailurePoint) -> None:
        """An attempt failed at `point`, and another worker got the request."""

    def fell_back(self, model: str, served: str) -> None:
        """A request for `model` went to a worker of its fallback `served`. Both are names in the settings."""

    def handed_over(self, outcome: str) -> None:
        """A request that was planned on two workers was served by them, or by one; `outcome` says why."""

    def pulled(self, outcome: str) -> None:
        """A request that was planned as a pull has ended, or goes on without one; `outcome` says which."""

    def handover_step(self, step: str, duration_s: float) -> None:
        """A step of a KV handover ended: ``prefill``, or ``transfer`` or ``sidecar`` up to the first event."""

    def redialled(self) -> None:
        """An idle connection had closed, and the same worker got the request on a new one."""

    def worker_died(self, outcome: str) -> None:
        """A worker died while requests waited for their first token.

        `outcome`: ``blamed``, or ``ambiguous`` if several bodies were there.
        """

    def client_aborted(self, phase: str) -> None:
        """The client left. `phase`: ``request``, ``before_first`` or ``stream``."""

    def let_in(self, key_name: str) -> None: ...

    def reloaded(self, what: str, ok: bool) -> None:
        """Changed files of `what` (``api_keys``, ``tls``, ...) were read again. `ok`: they are in use."""

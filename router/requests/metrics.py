"""The counters and histograms of the data plane. All of them are written by the event loop's thread.

`Labels` are the path, the route and the model of a request. The path is a pattern of `routes`
(``/v1/responses/{id}``, ...), ``local`` for replies of the gateway itself, or ``unknown``, and the model is one that
the fleet lists, or ``other``, so that the number of series is bounded. A `phase` is ``request``, ``before_first`` or
``stream``. Values are seconds or tokens.
"""

from __future__ import annotations

from typing import Final

from router.metrics.registry import Registry

Labels = tuple[str, str, str]


class GatewayMetrics:
    """The instruments of the gateway, by the names of the catalogue."""

    def __init__(self, registry: Registry) -> None:
        counter, histogram = registry.counter, registry.histogram
        self.requests: Final = counter("requests")
        self.durations: Final = histogram("request_duration_seconds")
        self.ttft: Final = histogram("time_to_first_token_seconds")
        self.itl: Final = histogram("inter_token_latency_seconds")
        self.prompt_lengths: Final = histogram("request_prompt_tokens")
        self.output_lengths: Final = histogram("request_output_tokens")
        self.route_prompt_tokens: Final = counter("route_prompt_tokens")
        self.service_levels: Final = counter("service_level_requests")
        self.errors: Final = counter("errors")
        self.client_aborts: Final = counter("client_aborts")
        self.requests_by_key: Final = counter("requests_by_key")
        self.reloads: Final = counter("reloads")
        self.identify: Final = histogram("identify_seconds")
        self.decision: Final = histogram("decision_seconds").at()
        self.queue: Final = histogram("queue_seconds")
        self.hold: Final = histogram("hold_seconds").at()
        self.retries: Final = counter("retries")
        self.fallbacks: Final = counter("fallbacks")
        self.redials: Final = counter("redials")
        self.handovers: Final = counter("handovers")
        self.handover_steps: Final = histogram("handover_seconds")
        self.pulls: Final = counter("pulls")
        self.migrations: Final = counter("migrations")
        self.migration_gaps: Final = histogram("migration_gap_seconds").at()
        self.worker_deaths: Final = counter("worker_deaths")

"""One request's entry in the metrics and the access log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from router.gateway.flow.outbound import OutboundRequest
from router.gateway.flow.service_levels import ServiceLevels
from router.gateway.http.access_log import AccessLog
from router.gateway.metrics_protocol import GatewayMetrics
from router.placement.lifecycle_events import Usage
from router.placement.tickets import Ticket

_NO_USAGE: Final = Usage()


class LogSinks:
    """The metrics and the access log that the entries of all requests go to."""

    __slots__ = ("access", "metrics", "service_levels", "time")

    def __init__(
        self, metrics: GatewayMetrics, access: AccessLog, time: Callable[[], float], service_levels: ServiceLevels
    ) -> None:
        self.metrics = metrics
        self.access = access
        self.time = time
        self.service_levels = service_levels


class RequestLog:
    """Collects the times and the outcome of one request. Close it exactly once.

    `ticket` is its last placement, and `usage` the usage that its answer reported. `output_tokens` is the length of a
    complete answer: as reported, or else the number of its events.
    """

    __slots__ = ("_request", "_sinks", "_ttft_s", "output_tokens", "ticket", "usage")

    def __init__(self, sinks: LogSinks, request: OutboundRequest) -> None:
        self._sinks = sinks
        self._request = request
        self._ttft_s: float | None = None
        self.output_tokens: int | None = None
        self.ticket: Ticket | None = None
        self.usage = _NO_USAGE

    @property
    def worker(self) -> str:
        """The last worker tried; empty if there was none."""
        return "" if self.ticket is None else self.ticket.candidate.id

    def first_event(self, now_s: float) -> None:
        """Record the first real event, or body byte."""
        self._ttft_s = now_s - self._request.arrived_s
        self._sinks.metrics.first_event(self._request.route.pattern, self._ttft_s)

    def close(self, status: int, response_bytes: int, events: int, left_in: str | None, error: str | None) -> None:
        """Write the entry of the ended request.

        `events` counts the events of a stream. `left_in` is the state in which the client left, and `error` the code
        of the gateway's error.
        """
        sinks, request = self._sinks, self._request
        duration_s = sinks.time() - request.arrived_s
        sinks.metrics.request_ended(request.route.pattern, status, duration_s)
        sinks.metrics.relayed(request.size_bytes, response_bytes)
        if sinks.service_levels.any:
            self._judge(status, duration_s)
        if sinks.access.enabled:
            ended = {"left_in": left_in, "error": error, "key_name": request.caller.name}
            sinks.access.write(
                request.head,
                request.peer,
                status=status,
                bytes=response_bytes,
                ttft_s=None if self._ttft_s is None else round(self._ttft_s, 6),
                duration_s=round(duration_s, 6),
                **self._placement(),
                **self._tokens(events),
                request_id=request.id.decode("latin-1"),
                **{name: value for name, value in ended.items() if value is not None},
            )

    def _judge(self, status: int, duration_s: float) -> None:
        """Count whether a stream met its service levels. Errors of the client, and clients that left, do not count."""
        request = self._request.request
        if request is None or not request.stream or 400 <= status < 500:
            return
        sinks, ttft_s, tokens = self._sinks, self._ttft_s, self.output_tokens
        levels = sinks.service_levels.of(request.route, request.model)
        if levels.ttft is not None:
            sinks.metrics.service_level(request.route, "ttft", ttft_s is not None and ttft_s <= levels.ttft)
        if levels.tpot is not None and ttft_s is not None and (tokens is None or tokens > 1):
            met = tokens is not None and (duration_s - ttft_s) / (tokens - 1) <= levels.tpot
            sinks.metrics.service_level(request.route, "tpot", met)

    def _placement(self) -> dict[str, Any]:
        """Return the fields on the placement. Their values are None, and `attempts` 0, if the request had none."""
        request, ticket = self._request.request, self.ticket
        return {
            "model": request.model if request is not None else None,
            "route": request.route if request is not None else None,
            "policy": ticket.record.policy if ticket is not None else None,
            "worker": self.worker or None,
            "worker_name": ticket.candidate.endpoint.name if ticket is not None else None,
            "attempts": ticket.attempt if ticket is not None else 0,
        }

    def _tokens(self, events: int) -> dict[str, Any]:
        """Return token counts: as reported, or None. Prompt tokens that are not reported come from the prompt."""
        request, usage = self._request.request, self.usage
        prompt = request.prompt if request is not None else None
        known_tokens = prompt.tokens if prompt is not None else None
        return {
            "prompt_tokens": known_tokens if usage.prompt_tokens is None else usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
            "events": events,
        }

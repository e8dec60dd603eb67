"""One request's entry in the metrics and the access log."""

from __future__ import annotations

from collections.abc import Callable

from router.gateway.flow.outbound import OutboundRequest
from router.gateway.http.access_log import AccessLog
from router.gateway.metrics_protocol import GatewayMetrics


class LogSinks:
    """The metrics and the access log that the entries of all requests go to."""

    __slots__ = ("access", "metrics", "time")

    def __init__(self, metrics: GatewayMetrics, access: AccessLog, time: Callable[[], float]) -> None:
        self.metrics = metrics
        self.access = access
        self.time = time


class RequestLog:
    """Collects the times, the last worker tried (`worker`) and the outcome of one request. Close it exactly once."""

    __slots__ = ("_request", "_sinks", "_ttft_s", "worker")

    def __init__(self, sinks: LogSinks, request: OutboundRequest) -> None:
        self._sinks = sinks
        self._request = request
        self._ttft_s: float | None = None
        self.worker = ""

    def first_event(self, now_s: float) -> None:
        """Record the first real event, or body byte."""
        self._ttft_s = now_s - self._request.arrived_s
        self._sinks.metrics.first_event(self._request.route.pattern, self._ttft_s)

    def close(self, status: int, response_bytes: int) -> None:
        """Write the entry of the ended request."""
        sinks, request = self._sinks, self._request
        duration_s = sinks.time() - request.arrived_s
        sinks.metrics.request_ended(request.route.pattern, status, duration_s)
        sinks.metrics.relayed(request.size_bytes, response_bytes)
        if sinks.access.enabled:
            key_name = request.caller.name
            sinks.access.write(
                request.head,
                request.peer,
                status=status,
                bytes=response_bytes,
                ttft_s=None if self._ttft_s is None else round(self._ttft_s, 6),
                duration_s=round(duration_s, 6),
                worker=self.worker or None,
                request_id=request.id.decode("latin-1"),
                **({} if key_name is None else {"key_name": key_name}),
            )

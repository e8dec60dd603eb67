"""One request's entry in the metrics and the access log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import time as wall_time
from typing import Any, Final

from router.gateway.flow.answer.service_levels import ServiceLevels
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.http.client.access_log import AccessLog
from router.gateway.metrics import GatewayMetrics, Labels
from router.placement.fleet.fleet import Fleet
from router.placement.request import Usage
from router.placement.tickets import Ticket
from router.tracing.context import traced

_NO_USAGE: Final = Usage()
_OTHER: Final = "other"
MODELS_NAMED: Final = 100
"""Models that the metrics of one process name. Further ones count as other."""


class LogSinks:
    """The metrics and the access log that the entries of all requests go to."""

    def __init__(
        self,
        metrics: GatewayMetrics,
        access: AccessLog,
        time: Callable[[], float],
        service_levels: ServiceLevels,
        fleet: Fleet,
    ) -> None:
        self.metrics = metrics
        self.access = access
        self.time = time
        self.service_levels = service_levels
        self._fleet = fleet
        self._models: set[str] = set()
        """The models that metrics name."""

    def model(self, model: str | None) -> str:
        """Return the label of a model: its name if a worker lists it, up to `MODELS_NAMED` names, or else "other".

        A client chooses the name, and the workers' lists can change at run time (LoRA adapters).
        """
        if not model:
            return ""
        if model in self._models:
            return model
        if len(self._models) >= MODELS_NAMED or not self._fleet.lists(model):
            return _OTHER
        self._models.add(model)
        return model


class RequestLog:
    """Collects the times and the outcome of one request. Close it exactly once.

    `ticket` is its last placement, and `usage` the usage that its answer reported. `output_tokens` is the length of a
    `complete` answer: as reported, or else as estimated from its events; None if it is not known.
    """

    __slots__ = (
        "_labels", "_request", "_sinks", "complete", "output_tokens", "ticket", "ttft_s", "usage",
    )  # fmt: skip

    def __init__(self, sinks: LogSinks, request: OutboundRequest) -> None:
        self._sinks = sinks
        self._request = request
        self.ttft_s: float | None = None
        self._labels: Labels | None = None
        context = traced(request.head.fields.get(b"traceparent"))
        if context is not None and context.sampled:
            request.exemplar = context.trace_id
        self.output_tokens: int | None = None
        self.complete = False
        self.ticket: Ticket | None = None
        self.usage = _NO_USAGE

    @property
    def worker(self) -> str:
        return "" if self.ticket is None else self.ticket.candidate.id

    def first_event(self, now_s: float) -> None:
        self.ttft_s = now_s - self._request.arrived_s
        self._labels = self._labelled()
        ttft = self._sinks.metrics.ttft
        ttft.observe(self.ttft_s, self._labels)
        if self._request.exemplar is not None:
            ttft.exemplify(self.ttft_s, self._labels, self._request.exemplar, wall_time())

    def gaps(self, gaps_s: Sequence[float]) -> None:
        assert self._labels is not None
        self._sinks.metrics.itl.at(self._labels).observe_all(gaps_s)

    @property
    def served_as(self) -> tuple[str, str]:
        _, route, model = self._labels or self._labelled()
        return route, model

    def error(self, code: str, phase: str) -> None:
        """Count an error of the gateway by its code, and under the route and the model of the request."""
        metrics = self._sinks.metrics
        metrics.errors.add(1.0, (code, phase))
        _, route, model = self._labels or self._labelled()
        metrics.route_errors.add(1.0, (route, model, phase))

    def _labelled(self) -> Labels:
        """Return the labels of the request. A fallback counts under the model that serves."""
        placed, request = self.ticket, self._request.request
        if request is None:
            return self._request.route.pattern, "", ""
        model = request.model if placed is None else placed.request.model
        return self._request.route.pattern, request.route, self._sinks.model(model)

    def close(
        self, status: int, now_s: float, response_bytes: int, events: int, left_in: str | None, error: str | None
    ) -> None:
        """Write the entry of the ended request.

        `events` counts the events of a stream. `left_in` is the state in which the client left, and `error` the code
        of the gateway's error.
        """
        sinks, request = self._sinks, self._request
        duration_s = now_s - request.arrived_s
        labels = self._labels or self._labelled()
        sinks.metrics.requests.add(1.0, (*labels, str(status)))
        sinks.metrics.durations.observe(duration_s, labels)
        if request.exemplar is not None:
            sinks.metrics.durations.exemplify(duration_s, labels, request.exemplar, wall_time())
        if self.ttft_s is not None:
            self._measure_lengths(labels)
        if sinks.service_levels.any:
            self._judge(status, duration_s)
        if sinks.access.enabled:
            ended = {"left_in": left_in, "error": error, "key_name": request.caller.name}
            sinks.access.write(
                request.head,
                request.peer,
                status=status,
                bytes=response_bytes,
                ttft_s=None if self.ttft_s is None else round(self.ttft_s, 6),
                duration_s=round(duration_s, 6),
                **self._placement(),
                **self._tokens(events),
                request_id=request.id.decode("latin-1"),
                **{name: value for name, value in ended.items() if value is not None},
            )

    def _measure_lengths(self, labels: Labels) -> None:
        metrics, prompt_tokens, cached_tokens = self._sinks.metrics, self._prompt_tokens(), self._cached_tokens()
        if prompt_tokens is not None:
            metrics.prompt_lengths.observe(prompt_tokens, labels)
        if self.output_tokens is not None:
            metrics.output_lengths.observe(self.output_tokens, labels)
        if prompt_tokens is not None and cached_tokens is not None:
            (_, route, model), cached = labels, min(prompt_tokens, cached_tokens)
            metrics.route_prompt_tokens.add(cached, (route, model, "true"))
            metrics.route_prompt_tokens.add(prompt_tokens - cached, (route, model, "false"))

    def _judge(self, status: int, duration_s: float) -> None:
        """Count whether a stream met its service levels. Errors of the client, and clients that left, do not count."""
        request = self._request.request
        if request is None or not request.stream or 400 <= status < 500:
            return
        sinks, ttft_s, tokens = self._sinks, self.ttft_s, self.output_tokens
        levels = sinks.service_levels.of(request.route, request.model)
        if levels.ttft is not None:
            self._judged("ttft", ttft_s is not None and ttft_s <= levels.ttft)
        if tokens is None and self.complete:
            return  # a time per token needs a length
        if levels.tpot is not None and ttft_s is not None and (tokens is None or tokens > 1):
            met = tokens is not None and (duration_s - ttft_s) / (tokens - 1) <= levels.tpot
            self._judged("tpot", met)

    def _judged(self, target: str, met: bool) -> None:
        sinks, request, ticket = self._sinks, self._request.request, self.ticket
        assert request is not None
        sinks.metrics.service_levels.add(1.0, (request.route, target, "true" if met else "false"))
        if ticket is not None:
            sinks.service_levels.attainment.judged(ticket.candidate.endpoint.role, met, sinks.time())

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
        usage = self.usage
        return {
            "prompt_tokens": self._prompt_tokens(),
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
            "events": events,
        }

    def _cached_tokens(self) -> int | None:
        """Return the cached tokens as reported, or 0 where the worker has left out a zero (vLLM 0.23)."""
        reported, ticket = self.usage.cached_tokens, self.ticket
        return ticket.record.reported_cached_tokens if reported is None and ticket is not None else reported

    def _prompt_tokens(self) -> int | None:
        if self.usage.prompt_tokens is not None:
            return self.usage.prompt_tokens
        request = self._request.request
        return request.prompt.tokens if request is not None and request.prompt is not None else None

"""The entries of requests in the metrics and the access log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import time as wall_time
from typing import Any, Final

from router.gateway.flow.outbound import OutboundRequest
from router.gateway.flow.service_levels import ServiceLevels
from router.gateway.http.client.access_log import AccessLog
from router.placement.fleet.fleet import Fleet
from router.requests.metrics import GatewayMetrics, Labels

_OTHER: Final = "other"
MODELS_NAMED: Final = 100
"""Models that the metrics of one process name. Further ones count as other."""


class RequestLog:
    """The metrics and the access log that the entries of all requests go to. A request collects its own facts."""

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
        if len(self._models) >= MODELS_NAMED or not self._fleet.models.lists(model):
            return _OTHER
        self._models.add(model)
        return model

    def first_event(self, outbound: OutboundRequest, now_s: float) -> None:
        ttft_s = outbound.ttft_s = now_s - outbound.arrived_s
        labels = outbound.labels = self._labels(outbound)
        ttft = self.metrics.ttft
        ttft.observe(ttft_s, labels)
        if outbound.exemplar is not None:
            ttft.exemplify(ttft_s, labels, outbound.exemplar, wall_time())

    def gaps(self, outbound: OutboundRequest, gaps_s: Sequence[float]) -> None:
        assert outbound.labels is not None
        self.metrics.itl.at(outbound.labels).observe_all(gaps_s)

    def served_as(self, outbound: OutboundRequest) -> tuple[str, str]:
        """Return the labels of the request's route and model."""
        _, route, model = outbound.labels or self._labels(outbound)
        return route, model

    def error(self, outbound: OutboundRequest, code: str, phase: str) -> None:
        """Count an error of the gateway by its code, and under the route and the model of the request."""
        self.metrics.errors.add(1.0, (code, phase, *self.served_as(outbound)))

    def _labels(self, outbound: OutboundRequest) -> Labels:
        """Return the labels of the request. A fallback counts under the model that serves."""
        placed, request = outbound.ticket, outbound.request
        if request is None:
            return outbound.route.pattern, "", ""
        model = request.model if placed is None else placed.request.model
        return outbound.route.pattern, request.route, self.model(model)

    def close(self, outbound: OutboundRequest, status: int, now_s: float) -> None:
        """Write the entry of the ended request, once."""
        duration_s, ttft_s, labels = now_s - outbound.arrived_s, outbound.ttft_s, outbound.labels
        if labels is None:
            labels = self._labels(outbound)
        self.metrics.requests.add(1.0, (*labels, str(status)))
        self.metrics.durations.observe(duration_s, labels)
        if outbound.exemplar is not None:
            self.metrics.durations.exemplify(duration_s, labels, outbound.exemplar, wall_time())
        if ttft_s is not None:
            self._measure_lengths(outbound, labels)
        if self.service_levels.any:
            self._judge(outbound, status, duration_s)
        if self.access.enabled:
            left_in = None if outbound.left_in is None else outbound.left_in.name.lower()
            ended = {"left_in": left_in, "error": outbound.error_code, "key_name": outbound.caller.name}
            self.access.write(
                outbound.head,
                outbound.peer,
                status=status,
                bytes=outbound.relay.response_bytes,
                ttft_s=None if ttft_s is None else round(ttft_s, 6),
                duration_s=round(duration_s, 6),
                **_placement(outbound),
                prompt_tokens=_prompt_tokens(outbound),
                cached_tokens=outbound.usage.cached_tokens,
                output_tokens=outbound.usage.completion_tokens,
                events=outbound.relay.events,
                request_id=outbound.id.decode("latin-1"),
                **{name: value for name, value in ended.items() if value is not None},
            )

    def _measure_lengths(self, outbound: OutboundRequest, labels: Labels) -> None:
        metrics, prompt_tokens, cached_tokens = self.metrics, _prompt_tokens(outbound), _cached_tokens(outbound)
        if prompt_tokens is not None:
            metrics.prompt_lengths.observe(prompt_tokens, labels)
        if outbound.output_tokens is not None:
            metrics.output_lengths.observe(outbound.output_tokens, labels)
        if prompt_tokens is not None and cached_tokens is not None:
            (_, route, model), cached = labels, min(prompt_tokens, cached_tokens)
            metrics.route_prompt_tokens.add(cached, (route, model, "true"))
            metrics.route_prompt_tokens.add(prompt_tokens - cached, (route, model, "false"))

    def _judge(self, outbound: OutboundRequest, status: int, duration_s: float) -> None:
        """Count whether a stream met its service levels. Errors of the client, and clients that left, do not count."""
        request, ttft_s, tokens = outbound.request, outbound.ttft_s, outbound.output_tokens
        if request is None or not request.stream or 400 <= status < 500:
            return
        levels = self.service_levels.of(request.route, request.model)
        if levels.ttft is not None:
            self._judged(outbound, request.route, "ttft", ttft_s is not None and ttft_s <= levels.ttft)
        if tokens is None and outbound.answered is not None:
            return  # a time per token needs a length
        if levels.tpot is not None and ttft_s is not None and (tokens is None or tokens > 1):
            met = tokens is not None and (duration_s - ttft_s) / (tokens - 1) <= levels.tpot
            self._judged(outbound, request.route, "tpot", met)

    def _judged(self, outbound: OutboundRequest, route: str, target: str, met: bool) -> None:
        self.metrics.service_levels.add(1.0, (route, target, "true" if met else "false"))
        if outbound.ticket is not None:
            role = outbound.ticket.candidate.endpoint.role
            self.service_levels.attainment.judged(role, met, self.time())


def _placement(outbound: OutboundRequest) -> dict[str, Any]:
    """Return the fields on the placement. Their values are None, and `attempts` 0, if the request had none."""
    request, ticket = outbound.request, outbound.ticket
    return {
        "model": request.model if request is not None else None,
        "route": request.route if request is not None else None,
        "policy": ticket.record.policy if ticket is not None else None,
        "worker": ticket.candidate.id if ticket is not None else None,
        "worker_name": ticket.candidate.endpoint.name if ticket is not None else None,
        "attempts": ticket.attempt if ticket is not None else 0,
    }


def _cached_tokens(outbound: OutboundRequest) -> int | None:
    """Return the cached tokens as reported, or 0 where the worker has left out a zero (vLLM 0.23)."""
    reported, ticket = outbound.usage.cached_tokens, outbound.ticket
    return ticket.record.reported_cached_tokens if reported is None and ticket is not None else reported


def _prompt_tokens(outbound: OutboundRequest) -> int | None:
    if outbound.usage.prompt_tokens is not None:
        return outbound.usage.prompt_tokens
    request = outbound.request
    return request.prompt.tokens if request is not None and request.prompt is not None else None

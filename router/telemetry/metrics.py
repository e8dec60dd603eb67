"""Counters and histograms that the other parts call. Each call is a dict look-up and an addition."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from policies.view import WorkerId
from router.errors import RequestError
from router.placement.request import FailurePoint, Request
from router.placement.tickets import Ticket
from router.residency.exact.difference import Difference
from router.telemetry.catalogue import CATALOGUE, Kind
from router.telemetry.instruments import Counter, Histogram, Labels

log = logging.getLogger("warmroute.policy")

COMPILED = not __file__.endswith(".py")
"""Whether the hot path, of which this module is a part, is compiled."""
_SPECS = {spec.name: spec for spec in CATALOGUE}


class Registry:
    """The instruments in use, by catalogue name. A name or kind that is not in the catalogue raises KeyError."""

    def __init__(self) -> None:
        self.counters: dict[str, Counter] = {}
        self.histograms: dict[str, Histogram] = {}

    def counter(self, name: str) -> Counter:
        """Return the counter ``warmroute_{name}``."""
        return self.counters.setdefault(_declared(name, Kind.COUNTER), Counter())

    def histogram(self, name: str) -> Histogram:
        """Return the histogram ``warmroute_{name}``."""
        full = _declared(name, Kind.HISTOGRAM)
        return self.histograms.setdefault(full, Histogram(_SPECS[full].buckets))

    def forget(self, label: str, value: str) -> None:
        """Drop every series whose `label` is `value`, because its worker has left."""
        for name, counter in self.counters.items():
            _drop(counter.values, _SPECS[name].labels, label, value)
        for name, histogram in self.histograms.items():
            _drop(histogram.values, _SPECS[name].labels, label, value)


def _drop(series: dict[Labels, Any], names: tuple[str, ...], label: str, value: str) -> None:
    if label in names:
        at = names.index(label)
        for key in [key for key in series if key[at] == value]:
            del series[key]


def _declared(name: str, kind: Kind) -> str:
    full = f"warmroute_{name}"
    if _SPECS[full].kind is not kind:
        raise KeyError(f"{full} is not declared as a {kind}")
    return full


class Metrics:
    """Implements `GatewayMetrics`, `DispatchObserver` and `WatchMetrics` with one `Registry`."""

    def __init__(self) -> None:
        self.registry = Registry()
        counter, histogram = self.registry.counter, self.registry.histogram
        self._requests = counter("requests")
        self._durations = histogram("request_duration_seconds")
        self._ttft = histogram("time_to_first_token_seconds")
        self._itl = histogram("inter_token_latency_seconds")
        self._input_lengths = histogram("request_prompt_tokens")
        self._output_lengths = histogram("request_output_tokens")
        self._identify = histogram("identify_seconds")
        self._queue = histogram("queue_seconds")
        self._hold = histogram("hold_seconds").at()
        self._decision = histogram("decision_seconds").at()
        self._errors = counter("errors")
        self._route_errors = counter("route_errors")
        self._route_tokens = counter("route_prompt_tokens")
        self._retries = counter("retries")
        self._handovers = counter("handovers")
        self._pulls = counter("pulls")
        self._handover_steps = histogram("handover_seconds")
        self._fallbacks = counter("fallbacks")
        self._redials = counter("redials")
        self._retry_refusals = counter("retry_budget_exhausted")
        self._deaths = counter("worker_deaths")
        self._aborts = counter("client_aborts")
        self._keyed = counter("requests_by_key")
        self._reloads = counter("reloads")
        self._decisions = counter("decisions")
        self._route_decisions = counter("route_decisions")
        self._service_levels = counter("service_level_requests")
        self._rejections = counter("rejections")
        self._attempt_failures = counter("attempt_failures")
        self._policy_errors = counter("policy_errors")
        self._prompt_tokens = counter("prompt_tokens")
        self._cached_tokens = counter("cached_tokens")
        self._comparisons = counter("cached_comparisons")
        self._differences = counter("cached_differences")
        self._misrouted = counter("misrouted_requests")
        self._probes = counter("probes")
        self._late_probes = counter("late_probes")
        self._self_tests = counter("self_tests")
        self._event_replays = counter("event_replays")
        self._loop_lag = histogram("loop_lag_seconds").at()

    # GatewayMetrics

    def request_ended(self, labels: Labels, status: int, duration_s: float, trace_id: str | None = None) -> None:
        self._requests.add(1.0, (*labels, str(status)))
        self._durations.observe(duration_s, labels)
        if trace_id is not None:
            self._durations.exemplify(duration_s, labels, trace_id, time.time())

    def error(self, code: str, phase: str) -> None:
        self._errors.add(1.0, (code, phase))

    def route_error(self, labels: Labels, phase: str) -> None:
        """Count an error under the route and the model of its request."""
        self._route_errors.add(1.0, (*labels[1:], phase))

    def first_event(self, labels: Labels, ttft_s: float, trace_id: str | None = None) -> None:
        """Observe the time to the first real event or body byte."""
        self._ttft.observe(ttft_s, labels)
        if trace_id is not None:
            self._ttft.exemplify(ttft_s, labels, trace_id, time.time())

    def gaps(self, gaps_s: Sequence[float], labels: Labels) -> None:
        self._itl.at(labels).observe_all(gaps_s)

    def lengths(self, labels: Labels, prompt_tokens: int | None, output_tokens: int | None) -> None:
        if prompt_tokens is not None:
            self._input_lengths.observe(prompt_tokens, labels)
        if output_tokens is not None:
            self._output_lengths.observe(output_tokens, labels)

    def reported(self, labels: Labels, prompt_tokens: int, cached_tokens: int) -> None:
        served, cached = labels[1:], min(prompt_tokens, cached_tokens)
        self._route_tokens.add(cached, (*served, "true"))
        self._route_tokens.add(prompt_tokens - cached, (*served, "false"))

    def identified(self, wait_s: float, source: str) -> None:
        self._identify.observe(wait_s, (source,))

    def queued(self, wait_s: float, placed: bool) -> None:
        self._queue.observe(wait_s, ("true" if placed else "false",))

    def held(self, wait_s: float) -> None:
        self._hold.observe(wait_s)

    def service_level(self, route: str, target: str, met: bool) -> None:
        self._service_levels.add(1.0, (route, target, "true" if met else "false"))

    def retried(self, point: FailurePoint) -> None:
        self._retries.add(1.0, (point.value,))

    def handed_over(self, outcome: str) -> None:
        """Count a request that was planned on two workers."""
        self._handovers.add(1.0, (outcome,))

    def pulled(self, outcome: str) -> None:
        """Count a request that was planned as a pull."""
        self._pulls.add(1.0, (outcome,))

    def handover_step(self, step: str, duration_s: float) -> None:
        """Observe the time of one step of a KV handover."""
        self._handover_steps.observe(duration_s, (step,))

    def fell_back(self, model: str, served: str) -> None:
        self._fallbacks.add(1.0, (model, served))

    def redialled(self) -> None:
        """Count a request that was repeated on a new connection to the same worker."""
        self._redials.add()

    def worker_died(self, outcome: str) -> None:
        self._deaths.add(1.0, (outcome,))

    def client_aborted(self, phase: str) -> None:
        self._aborts.add(1.0, (phase,))

    def let_in(self, key_name: str) -> None:
        self._keyed.add(1.0, (key_name,))

    def reloaded(self, what: str, ok: bool) -> None:
        self._reloads.add(1.0, (what, "ok" if ok else "failed"))

    def decision_took(self, duration_s: float) -> None:
        self._decision.observe(duration_s)

    # DispatchObserver

    def decided(self, ticket: Ticket) -> None:
        worker = ticket.candidate.id
        self._decisions.add(1.0, (worker, ticket.residency))
        self._prompt_tokens.add(ticket.request.prompt_tokens, (worker,))
        self._route_decisions.add(1.0, (ticket.record.route, ticket.record.policy))

    def rejected(self, request: Request, error: RequestError) -> None:
        self._rejections.add(1.0, (error.kind.spec.code,))

    def retry_refused(self) -> None:
        self._retry_refusals.add()

    def failed(self, ticket: Ticket, point: FailurePoint, reason: str) -> None:
        self._attempt_failures.add(1.0, (ticket.candidate.id, point.value))

    def compared(self, worker: WorkerId, predicted_tokens: int, reported_tokens: int) -> None:
        self._cached_tokens.add(predicted_tokens, (worker, "predicted"))
        self._cached_tokens.add(reported_tokens, (worker, "reported"))
        difference = predicted_tokens - reported_tokens
        outcome = "equal" if difference == 0 else "over" if difference > 0 else "under"
        self._comparisons.add(1.0, (worker, outcome))

    def differed(self, worker: WorkerId, difference: Difference) -> None:
        """Count a report that differed from its prediction, by the reason."""
        self._differences.add(1.0, (worker, difference.value))

    def misrouted(self, worker: WorkerId) -> None:
        """Count a request that another worker was predicted to have more cached tokens of than this one had."""
        self._misrouted.add(1.0, (worker,))

    def policy_failed(self, policy: str, reason: str, first: bool) -> None:
        """Count a policy that failed on a request. Only the first failure is logged, because a broken rule fails on
        every request.
        """
        self._policy_errors.add(1.0, (policy,))
        if first:
            log.warning("policy failed", extra={"policy": policy, "reason": reason})

    # WatchMetrics

    def probed(self, kind: str, ok: bool) -> None:
        self._probes.add(1.0, (kind, "ok" if ok else "failed"))

    def probed_late(self, verdict: str) -> None:
        """Count a probe that timed out; `verdict` is counted, progress, nobody or needed."""
        self._late_probes.add(1.0, (verdict,))

    def self_tested(self, verdict: str) -> None:
        self._self_tests.add(1.0, (verdict,))

    def replayed(self, worker: str, outcome: str) -> None:
        self._event_replays.add(1.0, (worker, outcome))

    def worker_gone(self, worker: str) -> None:
        self.registry.forget("worker", worker)

    # the event loop

    def loop_lag(self, lag_s: float) -> None:
        self._loop_lag.observe(lag_s)

    def statistics(self) -> dict[str, int]:
        return {
            "counter_series": sum(len(counter.values) for counter in self.registry.counters.values()),
            "histogram_series": sum(len(histogram.values) for histogram in self.registry.histograms.values()),
        }

"""``/metrics`` with vLLM's names and labels, in a registry of its own."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from backends.engine.request import FinishReason
from backends.simulated.generation import Generation
from backends.vllm.histogram_bounds import DURATION_S, ITL_S, TTFT_S, length_bounds

_COUNTERS = (
    ("vllm:prefix_cache_queries", "Tokens looked up.", "prefix_queries_tokens"),
    ("vllm:prefix_cache_hits", "Tokens found.", "prefix_hits_tokens"),
    ("vllm:num_preemptions", "Requests pushed back to waiting.", "preemptions"),
    ("vllm:prompt_tokens", "Prompt tokens processed.", "prompt_tokens"),
    ("vllm:prompt_tokens_cached", "Prompt tokens taken from the cache.", "prompt_cached_tokens"),
    ("vllm:generation_tokens", "Tokens generated.", "generation_tokens"),
)
"""Name, help, and the engine's number."""
_TRANSFER_COUNTERS = (
    ("vllm:nixl_num_kv_expired_reqs", "Leases that ended unread.", "expired"),
    ("vllm:nixl_num_notifications_after_expiry", "Loads that ended after their lease.", "late"),
    ("vllm:nixl_num_failed_transfers", "Loads that failed.", "failed"),
)
_HISTOGRAMS: tuple[tuple[str, str, Sequence[float] | None], ...] = (
    ("time_to_first_token_seconds", "Time to first token.", TTFT_S),
    ("inter_token_latency_seconds", "Time between two tokens.", ITL_S),
    ("e2e_request_latency_seconds", "Whole request.", DURATION_S),
    ("request_queue_time_seconds", "Time spent waiting.", DURATION_S),
    ("request_prefill_time_seconds", "Scheduled to first token.", DURATION_S),
    ("request_prompt_tokens", "Prompt tokens of a request.", None),
    ("request_generation_tokens", "Tokens generated for a request.", None),
    ("request_prefill_kv_computed_tokens", "Prompt tokens computed, cached ones not counted.", None),
)
"""Name without its prefix, help, and bounds; None: those of lengths up to the model's."""
_SUFFIXES = {"gauge": "", "counter": "_total"}


class TokenHistogram:
    """A histogram cheap enough for every token; `bounds` are upper ends, ascending."""

    def __init__(self, name: str, text: str, bounds: Iterable[float]) -> None:
        self.name = name
        self.text = text
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def family(self, labels: Mapping[str, str]) -> Metric:
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, map(float, self.bounds)), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        family = HistogramMetricFamily(self.name, self.text, labels=list(labels))
        family.add_metric(list(labels.values()), buckets, self.sum)
        return family


class WorkerMetrics(Collector):
    """The counts of one worker, and the registry that exposes them with the engine's numbers.

    `engine_statistics` is called at each scrape.
    """

    def __init__(
        self,
        model_name: str,
        max_model_len: int,
        cache_config: Mapping[str, str],
        started_unix_s: float,
        engine_statistics: Callable[[], Mapping[str, int | float]],
        sleep_level: Callable[[], int],
        log_stats: bool = True,
        transfers: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        self._labels = {"model_name": model_name, "engine": "0"}
        self._cache_config = {**cache_config, "engine": "0"}
        self._started_unix_s = started_unix_s
        self._engine_statistics = engine_statistics
        self._sleep_level = sleep_level
        self._log_stats = log_stats
        self._transfers = transfers
        lengths = length_bounds(max_model_len)
        self._histograms = {
            name: TokenHistogram(f"vllm:{name}", text, lengths if bounds is None else bounds)
            for name, text, bounds in _HISTOGRAMS
        }
        self._finished = dict.fromkeys(FinishReason, 0)
        self._rejected = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def token(self, generation: Generation, now_s: float) -> None:
        if generation.first_token_s is None:
            generation.first_token_s = now_s
            self._observe("time_to_first_token_seconds", now_s - generation.state.arrived_s)
        else:
            self._observe("inter_token_latency_seconds", now_s - generation.last_token_s)
        generation.last_token_s = now_s

    def rejected(self) -> None:
        self._rejected += 1

    def finished(self, generation: Generation, reason: FinishReason, now_s: float) -> None:
        """Count `generation`, which ended for `reason`. The times and lengths of an aborted one are not observed."""
        self._finished[reason] += 1
        state, first_token_s = generation.state, generation.first_token_s
        if reason is FinishReason.ABORT or state.first_scheduled_s is None or first_token_s is None:
            return
        observed = {
            "e2e_request_latency_seconds": now_s - state.arrived_s,
            "request_queue_time_seconds": state.first_scheduled_s - state.arrived_s,
            "request_prefill_time_seconds": first_token_s - state.first_scheduled_s,
            "request_prompt_tokens": state.prompt_tokens,
            "request_generation_tokens": state.output_tokens,
            "request_prefill_kv_computed_tokens": state.prompt_tokens - (state.cached_tokens or 0),
        }
        for name, value in observed.items():
            self._observe(name, value)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)

    def describe(self) -> Iterator[Metric]:
        """Return nothing in advance: registering must not query the engine."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield every family, with the engine's current numbers; without `log_stats` the process's start alone."""
        if self._log_stats:
            numbers = self._engine_statistics()
            yield from self._gauges(numbers)
            yield from self._counters(numbers)
            yield from (histogram.family(self._labels) for histogram in self._histograms.values())
        # A change of this value shows a reader of the page that another process answers.
        yield GaugeMetricFamily("process_start_time_seconds", "Start, in Unix time.", value=self._started_unix_s)

    def _with_value(self, family: Metric, value: float, **labels: str) -> Metric:
        family.add_sample(f"{family.name}{_SUFFIXES[family.type]}", {**self._labels, **labels}, value)
        return family

    def _gauge(self, name: str, text: str, value: float, **labels: str) -> Metric:
        return self._with_value(Metric(name, text, "gauge"), value, **labels)

    def _gauges(self, numbers: Mapping[str, int | float]) -> Iterator[Metric]:
        yield self._gauge("vllm:num_requests_running", "Requests in the running batch.", numbers["running"])
        yield self._gauge("vllm:num_requests_waiting", "Requests waiting to be scheduled.", numbers["waiting"])
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", numbers["kv_usage"])
        sleep = Metric("vllm:engine_sleep_state", "1 for the state it is in.", "gauge")
        for level, state in enumerate(("awake", "weights_offloaded", "discard_all")):
            self._with_value(sleep, float(self._sleep_level() == level), sleep_state=state)
        yield sleep
        config = Metric("vllm:cache_config_info", "The KV cache.", "gauge")
        config.add_sample(config.name, dict(self._cache_config), 1.0)
        yield config

    def _counters(self, numbers: Mapping[str, int | float]) -> Iterator[Metric]:
        for name, text, key in _COUNTERS:
            yield self._with_value(Metric(name, text, "counter"), numbers[key])
        moved = {} if self._transfers is None else self._transfers()
        for name, text, key in _TRANSFER_COUNTERS if moved else ():
            yield self._with_value(Metric(name, text, "counter"), moved[key])
        success = Metric("vllm:request_success", "Requests finished.", "counter")
        for reason, count in self._finished.items():
            self._with_value(success, count, finished_reason=reason.value)
        yield success

    def statistics(self) -> dict[str, Any]:
        return {"finished": {reason.value: n for reason, n in self._finished.items()}, "rejected": self._rejected}

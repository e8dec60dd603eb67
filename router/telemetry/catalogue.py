"""Every metric that Warmroute exports, declared once: the exposition and the reference page are made from this table.

Labels take few values: routes are the gateway's patterns, workers the fleet's candidates (``host:port`` or
``host:port#rank``); nothing a client can choose is ever a label.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import chain


class Kind(StrEnum):
    """How a metric behaves, in Prometheus' words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Merge(StrEnum):
    """What several processes behind one port say together: what each has of its own is summed; of what all of them see
    alike, a worker's state say, the largest or smallest value is told."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. A counter's `name` is given without its ``_total``; `buckets` are upper bounds."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    merge: Merge = Merge.SUM

    @property
    def exported_name(self) -> str:
        """The name as Prometheus stores it (histograms add ``_bucket``, ``_sum`` and ``_count``)."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


TTFT_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 60.0, 180.0, 600.0)
ITL_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
DURATION_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1800.0, 3600.0)
WAIT_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CPU_S = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025),
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
)
LAG_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.5, 1.0, 5.0)


def _counter(name: str, text: str, *labels: str, merge: Merge = Merge.SUM) -> MetricSpec:
    return MetricSpec(f"warmroute_{name}", Kind.COUNTER, text, labels, merge=merge)


def _gauge(name: str, text: str, *labels: str, merge: Merge = Merge.SUM) -> MetricSpec:
    return MetricSpec(f"warmroute_{name}", Kind.GAUGE, text, labels, merge=merge)


def _common(name: str, text: str, *labels: str) -> MetricSpec:
    """A gauge of what all processes see alike."""
    return _gauge(name, text, *labels, merge=Merge.MAX)


def _histogram(name: str, buckets: tuple[float, ...], text: str, *labels: str) -> MetricSpec:
    return MetricSpec(f"warmroute_{name}", Kind.HISTOGRAM, text, labels, buckets)


GATEWAY = (
    _counter(
        "requests", "Responses ended, by route and status as the client saw it (499: it left first).", "route", "status"
    ),
    _histogram(
        "request_duration_seconds", DURATION_S, "A request's last byte in to its response's last byte out.", "route"
    ),
    _histogram(
        "time_to_first_token_seconds", TTFT_S, "A request's last byte in to the first real event or body byte.", "route"
    ),
    _histogram("inter_token_latency_seconds", ITL_S, "Gap between two reads of an event stream."),
    _histogram(
        "identify_seconds", CPU_S, "Time to parse a request and find its prompt's identity, by source.", "source"
    ),
    _histogram(
        "queue_seconds", WAIT_S, "Time requests were queued with no worker ready; placed says if one came.", "placed"
    ),
    _histogram(
        "hold_seconds", WAIT_S, "Time requests were held by the policy until their worker had prefilled others."
    ),
    _histogram("decision_seconds", CPU_S, "Time to choose and book a worker."),
    _counter("errors", "Errors answered by the gateway itself, by code and phase.", "code", "phase"),
    _counter("retries", "Attempts that failed and were retried on another worker, by failure point.", "point"),
    _counter("retry_budget_exhausted", "Further attempts that the retry budget did not allow."),
    _counter(
        "worker_deaths",
        "Workers whose process went while requests there waited for their first token: blamed on these requests, or "
        "ambiguous (more than four different ones, so on none). Requests refused for it are errors of the code "
        "request_crashes_workers.",
        "outcome",
    ),
    _counter("redials", "Requests repeated on a fresh connection because a pooled one had died idle."),
    _counter("client_aborts", "Clients that left before their response ended, by phase.", "phase"),
    _counter("requests_by_key", "Requests let in, by the name of the API key they brought.", "key"),
    _counter(
        "reloads",
        "Changed files read again, by what they hold (api_keys, admin_token, tls, admin_tls, worker_tls) and outcome: "
        "ok, or failed, which leaves the old content in use.",
        *("what", "outcome"),
    ),
    _counter("request_bytes", "Body bytes taken from clients."),
    _counter("response_bytes", "Response bytes written to clients."),
    _counter(
        "rewrites",
        "Request bodies changed on their way, by rewrite: isolate_cache, observe_usage or relearn.",
        "rewrite",
    ),
    _gauge("client_connections", "Open client connections, TLS handshakes included."),
    _counter("connections_refused", "Client connections closed at accept because all places were taken."),
    _counter("connections_evicted", "Client connections closed to make room: idle for longest, or slow handshakes."),
    _gauge("worker_connections", "Open connections to workers, idle ones included."),
    _gauge("tasks", "Tasks of the event loop: a few per worker, and one for each scrape."),
    _gauge("buffered_body_bytes", "Request body bytes held until their worker answers."),
    _gauge("buffered_body_limit_bytes", "Most of them: limits.max_buffered_body_bytes."),
    _gauge("buffered_response_bytes", "Unsent response bytes of clients that do not read fast enough."),
    _gauge("buffered_response_limit_bytes", "Most of them: limits.max_buffered_response_bytes."),
    _counter("slow_readers_cut", "Clients cut off because all unsent response bytes together were too many."),
    _gauge("active_requests", "Requests in flight, streams included."),
    _gauge("tenant_queued_requests", "A tenant's requests that are queued or held now.", "tenant"),
    _gauge("tenant_buffered_body_bytes", "A tenant's request body bytes held until their worker answers.", "tenant"),
    _counter(
        "tenant_refusals",
        "Requests refused because of a tenant's quota: max_queued_requests or max_buffered_body_bytes.",
        *("tenant", "quota"),
    ),
    _gauge("queued_requests", "Requests queued now because no worker is ready."),
    _gauge("held_requests", "Requests held now: the policy waits for a better moment to send them."),
)

IDENTITY = (
    _counter("prompt_tokens_known", "Prompt tokens found in the memory of tokenised prefixes."),
    _counter("prompt_tokens_tokenised", "Prompt tokens that had to be tokenised."),
    _gauge("prompt_memory_bytes", "Memory of prompts: residency.memo_bytes, and 8 MiB of the latest texts at most."),
    _gauge("prompt_memory_limit_bytes", "Most of it without these texts: residency.memo_bytes."),
)

DECISIONS = (
    _counter("decisions", "Placements, by worker and how far its view could be trusted.", "worker", "residency"),
    _counter("rejections", "Requests that no worker could take, by error code.", "code"),
    _counter("attempt_failures", "Attempts that a worker failed, by worker and failure point.", "worker", "point"),
    _counter("policy_errors", "Times the policy raised or answered nonsense, and was passed over.", "policy"),
    _counter("prompt_tokens", "Prompt tokens of placed requests.", "worker"),
    _counter("predicted_cached_tokens", "Cached tokens predicted, for responses that reported theirs.", "worker"),
    _counter("reported_cached_tokens", "Cached tokens reported by the worker.", "worker"),
    _counter("cached_comparisons", "Predictions compared with reports: equal, over or under.", "worker", "outcome"),
    _counter(
        "cached_differences",
        "Predictions that differed from reports, by what explains it: scheduled_since, slower_tier, "
        "evicted_while_queued, reserved_not_scheduled, cleared, approximate; other: nothing does.",
        *("worker", "reason"),
    ),
)

FLEET = (
    _common("worker_state", "1 for the state an endpoint is in, 0 for the others.", "endpoint", "state"),
    _common("worker_running_requests", "Requests running on the worker, as it last reported.", "worker"),
    _common("worker_waiting_requests", "Requests waiting on the worker, as it last reported.", "worker"),
    _common("worker_kv_usage_ratio", "Share of the worker's KV cache in use, as it last reported.", "worker"),
    _counter(
        "worker_prefix_queries",
        "Prompt tokens looked up in the worker's cache, as it last reported.",
        "worker",
        merge=Merge.MAX,
    ),
    _counter(
        "worker_prefix_hits",
        "Prompt tokens found in the worker's cache, as it last reported.",
        "worker",
        merge=Merge.MAX,
    ),
)

RESIDENCY = (
    _common(
        "view_residency", "1 for how far the worker's view can be trusted, 0 for the others.", "worker", "residency"
    ),
    _common("index_blocks", "Blocks known to be resident on the worker.", "worker"),
    _common("index_hashes", "Distinct block hashes known over all workers."),
    _gauge("approximate_bytes", "Memory of all approximate views together."),
    _gauge("approximate_limit_bytes", "Most of it: residency.approximate_bytes."),
    _gauge("event_link_up", "1 while the worker's KV event publisher is connected.", "worker", merge=Merge.MIN),
    _common("event_lag_seconds", "Age of the newest batch of KV events when it came in, by both clocks.", "worker"),
    _counter("event_bytes", "Bytes of KV events received.", "worker"),
    _counter("event_batches", "Batches of KV events applied.", "worker"),
    _counter("event_gaps", "Gaps in the sequence of a worker's KV events.", "worker"),
    _counter("event_restarts", "Times a worker's event sequence began again.", "worker"),
    _counter(
        "event_replays",
        "Replays asked for, by outcome: filled, empty, partial, timeout, broken or unavailable.",
        *("worker", "outcome"),
    ),
    _counter("relearn_asks", "Requests that asked the worker to announce again what they found cached.", "worker"),
    _counter("reannounced_blocks", "Blocks announced for requests that asked, known ones included.", "worker"),
    _common("relearned_blocks", "Blocks learned by such announcements since events were last missed.", "worker"),
    _counter("event_decode_errors", "Batches of KV events that could not be read.", "worker"),
    _counter("event_malformed", "KV events of a known type that could not be read.", "worker"),
    _counter("event_unknown", "KV events of an unknown type, skipped.", "worker"),
)

WATCH = (
    _counter("probes", "Probes of workers, by kind (quick, full, load) and outcome (ok, failed).", "kind", "outcome"),
    _counter("self_tests", "Self-tests ended, by verdict.", "verdict"),
    _histogram(
        "event_iteration_seconds", CPU_S, "Time one iteration of the event loop spent on KV events of one worker."
    ),
    _histogram("loop_lag_seconds", LAG_S, "How late the event loop woke a timer."),
    _common("memory_limit_bytes", "Memory that the process may use, and where that limit comes from.", "source"),
    _gauge(
        "allocated_blocks",
        "Pieces of memory that Python has in use. Resident memory may creep while they do not, as free memory splits.",
    ),
    _gauge("processes", "Processes of the gateway that answered this scrape."),
    _counter("process_restarts", "Processes of the gateway that ended unasked and were started again."),
    _counter("log_lines_dropped", "Log lines dropped because what reads them is too slow, stuck or gone."),
)

CATALOGUE: tuple[MetricSpec, ...] = tuple(chain(GATEWAY, IDENTITY, DECISIONS, FLEET, RESIDENCY, WATCH))

PROCESS: tuple[MetricSpec, ...] = (
    MetricSpec("process_virtual_memory_bytes", Kind.GAUGE, "Virtual memory size in bytes."),
    MetricSpec("process_resident_memory_bytes", Kind.GAUGE, "Resident memory size in bytes."),
    MetricSpec("process_start_time_seconds", Kind.GAUGE, "Start time since the epoch in seconds.", merge=Merge.MIN),
    MetricSpec("process_cpu_seconds", Kind.COUNTER, "User and system CPU time in seconds."),
    MetricSpec("process_open_fds", Kind.GAUGE, "Open file descriptors."),
    MetricSpec("process_max_fds", Kind.GAUGE, "Most open file descriptors one process may have.", merge=Merge.MIN),
)
"""What the system says of a process, by the names that Prometheus' clients agree on."""

"""Every metric that Warmroute exports. The exposition and the reference page are made from this table.

Labels take few values: paths are the gateway's patterns, routes are those of the settings, workers are the fleet's
candidates (``host:port`` or ``host:port#rank``), and models are those that the workers list. A label never has a value
that a client can choose.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import chain
from typing import Any

from backends.vllm.histogram_bounds import DURATION_S, ITL_S, TTFT_S, length_bounds


class Kind(StrEnum):
    """The type of a metric, in Prometheus' words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Merge(StrEnum):
    """How the values of several processes are merged.

    Each process's own counts are summed. For values that all processes see alike, such as the state of a worker, the
    largest or smallest counts.
    """

    SUM = "sum"
    MAX = "max"
    MIN = "min"


class Stability(StrEnum):
    """What users may rely on (`docs/reference/metrics.md`)."""

    STABLE = "stable"
    EXPERIMENTAL = "experimental"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. A counter's `name` is given without its ``_total``; `buckets` are upper bounds."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    merge: Merge = Merge.SUM
    stability: Stability = Stability.STABLE

    @property
    def exported_name(self) -> str:
        """The name as Prometheus stores it (histograms add ``_bucket``, ``_sum`` and ``_count``)."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


TOKENS = length_bounds(1_000_000)
WAIT_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CPU_S = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025),
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
)
LAG_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.5, 1.0, 5.0)


def _metric(kind: Kind, name: str, text: str, *labels: str, **fields: Any) -> MetricSpec:
    return MetricSpec(f"warmroute_{name}", kind, text, labels, **fields)


_counter = partial(_metric, Kind.COUNTER)
_gauge = partial(_metric, Kind.GAUGE)
_common = partial(_metric, Kind.GAUGE, merge=Merge.MAX)
"""A gauge of what all processes see alike."""


def _histogram(name: str, buckets: tuple[float, ...], text: str, *labels: str) -> MetricSpec:
    return _metric(Kind.HISTOGRAM, name, text, *labels, buckets=buckets)


def _experimental(spec: MetricSpec) -> MetricSpec:
    return replace(spec, stability=Stability.EXPERIMENTAL)


_REQUEST = ("path", "route", "model")
"""The labels of a request. `route` and `model` are empty before they are known and where there is none."""

GATEWAY = (
    _counter(
        "requests",
        "Responses ended, by status as the client saw it (499: the client left before the end).",
        *(*_REQUEST, "status"),
    ),
    _histogram(
        "request_duration_seconds",
        DURATION_S,
        "Time from a request's last byte to its response's last byte.",
        *_REQUEST,
    ),
    _histogram(
        "time_to_first_token_seconds",
        TTFT_S,
        "Time from a request's last byte to the first real event or body byte.",
        *_REQUEST,
    ),
    _histogram("inter_token_latency_seconds", ITL_S, "Gap between two reads of an event stream.", *_REQUEST),
    _experimental(
        _histogram(
            "request_prompt_tokens",
            TOKENS,
            "Prompt tokens of requests that a worker answered: as reported, or else as identified.",
            *_REQUEST,
        )
    ),
    _experimental(
        _histogram(
            "request_output_tokens",
            TOKENS,
            "Output tokens of complete answers: as reported, or else as estimated from the events of the stream.",
            *_REQUEST,
        )
    ),
    _histogram(
        "identify_seconds", CPU_S, "Time to parse a request and find its prompt's identity, by source.", "source"
    ),
    _histogram(
        "queue_seconds", WAIT_S, "Time requests were queued with no worker ready; placed says if one came.", "placed"
    ),
    _histogram("hold_seconds", WAIT_S, "Time requests were held by the policy (admission hold)."),
    _histogram("decision_seconds", CPU_S, "Time to choose a worker and reserve its load."),
    _counter("errors", "Errors that the gateway itself answered, by code and phase.", "code", "phase"),
    _experimental(
        _counter(
            "route_errors",
            "Errors that the gateway itself answered to requests that it had read, by route, model and phase.",
            *("route", "model", "phase"),
        )
    ),
    _experimental(
        _counter(
            "route_prompt_tokens",
            "Prompt tokens of answers that report cached tokens, by whether they were cached.",
            *("route", "model", "cached"),
        )
    ),
    _counter("retries", "Attempts that failed and were retried on another worker, by failure point.", "point"),
    _counter(
        "handovers",
        "Requests planned on two workers, by outcome. handed_over: the decode worker answered with the KV cache of the "
        "prefill worker. stopped: the request ended before. All others ran on one worker: prefill_failed, "
        "nothing_handed_over (no usable transfer parameters), lease_expired, decode_worker_lost, decode_failed.",
        "outcome",
    ),
    _counter(
        "pulls",
        "Requests whose worker was to pull the start of the prompt from another one, by outcome. pulled: the answer "
        "reported at least half of the pulled tokens as cached. missed: it reported less. not_reported: it reported no "
        "cached tokens. failed: the request ran without a pull. stopped: it ended before its answer.",
        "outcome",
    ),
    _histogram(
        "handover_seconds",
        WAIT_S,
        "Time of the steps of a KV handover: prefill, from its request to its answer; transfer, from the "
        "decode worker's request to its first event, without the time in which it waited for the prefill; sidecar, "
        "from the request to its first event where the decode worker's sidecar runs both.",
        "step",
    ),
    _counter("retry_budget_exhausted", "Retries that the retry budget did not allow."),
    _counter(
        "worker_deaths",
        "Workers that died while requests waited there for their first token. Outcome blamed: these requests count "
        "as suspects; ambiguous: more than four different requests waited, so none does. Refused requests are errors "
        "with the code request_crashes_workers.",
        "outcome",
    ),
    _counter(
        "fallbacks",
        "Requests that went to a fallback of their model, by both names in the settings.",
        "wanted",
        "served",
    ),
    _counter("redials", "Requests repeated on a new connection because a pooled one had died while idle."),
    _counter("client_aborts", "Clients that left before their response ended, by phase.", "phase"),
    _counter("requests_by_key", "Authenticated requests, by the name of their API key.", "key"),
    _counter(
        "reloads",
        "Reloads of changed files, by content (api_keys, admin_token, tls, admin_tls, worker_tls) and outcome: ok, "
        "or failed, which leaves the old content in use.",
        *("what", "outcome"),
    ),
    _counter(
        "rewrites",
        "Request bodies that the gateway changed, by rewrite: isolate_cache, observe_usage, relearn or model.",
        "rewrite",
    ),
    _gauge("client_connections", "Open client connections, including TLS handshakes."),
    _counter(
        "connections_closed",
        "Client connections that the gateway closed, by reason: refused at limits.max_connections; evicted there (the "
        "longest idle, or slow TLS handshakes) in favour of new ones; or slow_reader, when the unsent response bytes "
        "of all clients exceeded their limit.",
        "reason",
    ),
    _gauge("worker_connections", "Open connections to workers, including idle ones."),
    _gauge("tasks", "Tasks of the event loop: a few per worker, and one per scrape."),
    _gauge(
        "buffered_bytes",
        "Bytes in buffers, by content: requests (bodies, until their worker answers) or responses (not read yet by "
        "slow clients).",
        "content",
    ),
    _gauge(
        "buffered_limit_bytes",
        "Limit of buffered_bytes: limits.max_buffered_body_bytes and limits.max_buffered_response_bytes.",
        "content",
    ),
    _gauge("active_requests", "Requests in flight, including streams."),
    _gauge(
        "route_requests",
        "A route's requests now, if it has a limit or queue, by state: running (on workers or held) or queued.",
        *("route", "state"),
    ),
    _counter("route_refusals", "Requests refused because their route's queue was full or too slow.", "route"),
    _counter(
        "service_level_requests",
        "Streams with a service level, by route, target (ttft or tpot) and whether they met it.",
        *("route", "target", "met"),
    ),
    _gauge("tenant_queued_requests", "A tenant's requests that are queued or held now.", "tenant"),
    _gauge("tenant_buffered_body_bytes", "A tenant's request body bytes kept until their worker answers.", "tenant"),
    _counter(
        "tenant_refusals",
        "Requests refused by a tenant's quota: max_queued_requests or max_buffered_body_bytes.",
        *("tenant", "quota"),
    ),
    _common(
        "limit_running_requests", "Requests in progress of a tenant or key with limits, in the whole fleet.", "account"
    ),
    _common(
        "limit_remaining",
        "What is left in the bucket of a tenant or key, by unit: requests or tokens. Below 0: more was used than the "
        "estimate.",
        *("account", "unit"),
    ),
    _counter("limit_admitted_requests", "Requests that were charged to a tenant's or key's limits.", "account"),
    _counter("limit_used_tokens", "Tokens of ended requests that a tenant's or key's limits were charged.", "account"),
    _counter(
        "limit_refusals",
        "Requests refused with 429, by limit: requests_per_minute, tokens_per_minute or max_concurrent_requests.",
        *("account", "limit"),
    ),
    _gauge("queued_requests", "Requests queued now because no worker is ready."),
    _gauge(
        "held_requests",
        "Requests held now by route and model: the policy waits for a better moment to send them.",
        *("route", "model"),
    ),
)

IDENTITY = (
    _common(
        "models",
        "Models by what tokenises their prompts: local, worker (its /tokenize, which is slower), or none, so that "
        "prompts have no token ids.",
        "tokenizer",
    ),
    _counter(
        "identified_prompt_tokens",
        "Prompt tokens of identified requests, by source: memory (of tokenised prefixes) or tokenizer.",
        "source",
    ),
    _gauge(
        "cache_bytes",
        "Memory of what the gateway keeps, by cache: prompts (with 8 MiB of the latest texts beside their limit), or "
        "views (the approximate ones).",
        "cache",
    ),
    _gauge("cache_limit_bytes", "Limit of cache_bytes: residency.memo_bytes and residency.approximate_bytes.", "cache"),
)

DECISIONS = (
    _counter("decisions", "Placed requests, by worker and residency of its view.", "worker", "residency"),
    _counter("route_decisions", "Placed requests, by route and policy.", "route", "policy"),
    _counter("decision_log_lost_windows", "Windows of the decision log that ended early because a line was lost."),
    _counter("rejections", "Requests that no worker could take, by error code.", "code"),
    _counter("attempt_failures", "Attempts that a worker failed, by worker and failure point.", "worker", "point"),
    _counter("policy_errors", "Times the policy raised or returned an invalid decision, and was bypassed.", "policy"),
    _counter("prompt_tokens", "Prompt tokens of placed requests.", "worker"),
    _counter(
        "cached_tokens",
        "Cached tokens of responses that report them, by source: predicted (by the gateway) or reported (by the "
        "worker).",
        *("worker", "source"),
    ),
    _counter("cached_comparisons", "Predictions compared with reports: equal, over or under.", "worker", "outcome"),
    _experimental(
        _counter(
            "misrouted_requests",
            "Responses with fewer cached tokens than predicted, and fewer than another worker was predicted to have. "
            "Their share of cached_comparisons is the rate of incorrect routing.",
            "worker",
        )
    ),
    _counter(
        "cached_differences",
        "Predictions that differed from reports, by reason: scheduled_since, slower_tier, evicted_while_queued, "
        "reserved_not_scheduled, cleared, approximate, or other if none is known.",
        *("worker", "reason"),
    ),
)

FLEET = (
    _common("ready_workers", "Workers that get requests."),
    _common(
        "model_ready_workers",
        "Workers that get requests for the model, of each model that a worker has listed; at most 256 models.",
        "model",
    ),
    _common("worker_state", "1 for the state of the endpoint, 0 for the other states.", "endpoint", "state"),
    _common(
        "queued_prefill_seconds",
        "Queue wait: estimated time until the prefill of a new prompt would start on the worker.",
        "worker",
    ),
    _experimental(
        _gauge(
            "kv_transfer_tokens_per_second",
            "Prompt tokens whose KV cache moves to the worker per second, as learned: its slowest link. Kind: handover "
            "or pull.",
            *("worker", "kind"),
            merge=Merge.MIN,
        )
    ),
    _common(
        "worker_requests",
        "Requests on the worker, as it last reported, by state: running or waiting.",
        "worker",
        "state",
    ),
    _common("worker_kv_usage_ratio", "Share of the worker's KV cache in use, as it last reported.", "worker"),
    _counter(
        "worker_prefix_tokens",
        "Prompt tokens in the worker's cache, as it last reported, by kind: queried (looked up) or hit (found).",
        *("worker", "kind"),
        merge=Merge.MAX,
    ),
    _experimental(
        _common(
            "worker_stuck_kv_tokens",
            "KV cache on a prefill worker that neither requests nor the leases of KV handovers explain, for longer "
            "than a lease. Missing with `redis.url`, and while others send requests to the worker.",
            "worker",
        )
    ),
)

SCALING = tuple(
    map(
        _experimental,
        (
            _common("desired_replicas", "Workers that the load of a role needs, by the targets in `scaling`.", "role"),
            _common("ready_replicas", "Workers of a role that get requests.", "role"),
            _common(
                "role_utilisation_ratio",
                "Mean share of a role's workers in use, by resource: kv_cache (by requests in progress) or prefill "
                "(time spent on prefills).",
                *("role", "resource"),
            ),
            _common("role_queued_prefill_seconds", "Mean queue wait of a role's workers.", "role"),
            _gauge(
                "role_service_level_ratio",
                "Share of the last minute's streams that met their service levels; missing while few were judged.",
                "role",
                merge=Merge.MIN,
            ),
        ),
    )
)

RESIDENCY = (
    _common(
        "view_residency", "1 for the residency of the worker's view, 0 for the other values.", "worker", "residency"
    ),
    _common("index_blocks", "Blocks known to be resident on the worker.", "worker"),
    _common("index_hashes", "Distinct block hashes known over all workers."),
    _gauge("event_link_up", "1 while the worker's KV event publisher is connected.", "worker", merge=Merge.MIN),
    _common(
        "event_lag_seconds",
        "Age of the newest batch of KV events at its arrival, by the clocks of worker and gateway.",
        "worker",
    ),
    _counter("event_gaps", "Gaps in the sequence of a worker's KV events.", "worker"),
    _counter(
        "event_replays",
        "Replays requested, by outcome: filled, empty, partial, timeout, broken or unavailable.",
        *("worker", "outcome"),
    ),
    _counter(
        "event_faults",
        "What was not read of a worker's KV events, by kind: batch, event (of a known type), unknown_event (of another "
        "type), block (in a slower tier, by an unknown hash or in another size), or restart (of the sequence).",
        *("worker", "kind"),
    ),
)

WATCH = (
    _counter("probes", "Probes of workers, by kind (quick, full, load) and outcome (ok, failed).", "kind", "outcome"),
    _counter(
        "late_probes",
        "Probes that timed out, by verdict: counted; progress (the worker worked meanwhile) and nobody (no worker "
        "answered) do not count; needed (too few other workers are left).",
        "verdict",
    ),
    _common("workers_kept", "Workers in use in spite of their time-outs, because too few others are left."),
    _counter("self_tests", "Self-tests ended, by verdict.", "verdict"),
    _common("self_test_on", "1 while new workers are tested (residency.self_test)."),
    _common("state_unsaved", "1 while the state of the admin API's changes could not be written to state_dir."),
    _histogram("loop_lag_seconds", LAG_S, "Delay of the event loop in waking a timer."),
    _common("memory_limit_bytes", "Memory limit of the process, by its source.", "source"),
    _gauge(
        "allocated_blocks",
        "Memory blocks that Python has in use. Fragmentation can raise resident memory while they stay constant.",
    ),
    _gauge("processes", "Gateway processes that answered this scrape."),
    _common(
        "build_info",
        "Always 1; the labels say what runs: Warmroute's version, Python's, and whether the hot path is compiled.",
        *("version", "python", "compiled"),
    ),
    _common("discovery_up", "Whether a source of workers answers (1) or fails (0).", "source"),
    _common(
        "state_files_set_aside",
        "Files in state_dir that this process could not use in whole, and kept under another name.",
    ),
    _counter("process_restarts", "Gateway processes that ended unexpectedly and were restarted."),
    _experimental(
        _counter(
            "traces",
            "Requests whose traces were sent, dropped as the queue was full, or not taken by the receiver (failed).",
            "outcome",
        )
    ),
    _counter("log_lines_dropped", "Log lines dropped because their reader is too slow, stuck or gone."),
)

REPLICAS = (
    _counter(
        "replica_placements",
        "Placements of other processes on workers with a modelled cache, by outcome: stored, unplaced; dropped: own "
        "ones that were not sent.",
        "outcome",
    ),
    _common("replica_alone", "1 while Redis is configured and this gateway's own messages do not come back."),
    _common(
        "replicas_apart",
        "Gateways of the fleet that have another version of the shared changes, or a lease and are not heard.",
    ),
    _counter(
        "replica_faults",
        "Failed calls of Redis (errors), messages of other gateways that did not arrive (missed), and messages that "
        "could not be read (malformed).",
        "kind",
    ),
)

SIDECAR = (
    _gauge("sidecar_registered", "1 while a registry holds the worker.", "registry"),
    _counter("sidecar_registrations", "Registrations and renewals (outcome: ok or failed).", "registry", "outcome"),
)

CATALOGUE: tuple[MetricSpec, ...] = tuple(
    chain(GATEWAY, IDENTITY, DECISIONS, FLEET, SCALING, RESIDENCY, WATCH, REPLICAS, SIDECAR)
)

PROCESS: tuple[MetricSpec, ...] = (
    MetricSpec("process_virtual_memory_bytes", Kind.GAUGE, "Virtual memory size in bytes."),
    MetricSpec("process_resident_memory_bytes", Kind.GAUGE, "Resident memory size in bytes."),
    MetricSpec("process_start_time_seconds", Kind.GAUGE, "Start time since the epoch in seconds.", merge=Merge.MIN),
    MetricSpec("process_cpu_seconds", Kind.COUNTER, "User and system CPU time in seconds."),
    MetricSpec("process_open_fds", Kind.GAUGE, "Open file descriptors."),
    MetricSpec(
        "process_max_fds", Kind.GAUGE, "Maximum number of open file descriptors of one process.", merge=Merge.MIN
    ),
)
"""Metrics of the operating system about a process, by the names that Prometheus' client libraries share."""

"""Every metric that Warmroute exports. The exposition and the reference page are made from this table.

Labels take few values: paths are the gateway's patterns, routes are those of the settings, workers are the fleet's
candidates (``host:port`` or ``host:port#rank``), and models are those that the workers list. A label never has a value
that a client can choose.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

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


_BUCKETS = {
    "duration": DURATION_S,
    "ttft": TTFT_S,
    "itl": ITL_S,
    "tokens": length_bounds(1_000_000),
    "wait": (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    "cpu": (
        *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025),
        *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
    ),
    "lag": (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.5, 1.0, 5.0),
}
"""Upper bounds of histograms, by name."""
_TABLE = {
    # requests
    "counter requests{path,route,model,status}": "Responses ended, by status as the client saw it (499: the client "
    "left before the end).",
    "histogram duration request_duration_seconds{path,route,model}": "Time from a request's last byte to its "
    "response's last byte.",
    "histogram ttft time_to_first_token_seconds{path,route,model}": "Time from a request's last byte to the first real "
    "event or body byte.",
    "histogram itl inter_token_latency_seconds{path,route,model}": "Gap between two reads of an event stream.",
    "histogram experimental tokens request_prompt_tokens{path,route,model}": "Prompt tokens of requests that a worker "
    "answered: as reported, or else as identified.",
    "histogram experimental tokens request_output_tokens{path,route,model}": "Output tokens of complete answers: as "
    "reported, or else as estimated from the events of the stream.",
    "histogram cpu identify_seconds{source}": "Time to parse a request and find its prompt's identity, by source.",
    "histogram wait queue_seconds{placed}": "Time requests were queued with no worker ready; placed says if one came.",
    "histogram wait hold_seconds": "Time requests were held by the policy (admission hold).",
    "histogram cpu decision_seconds": "Time to choose a worker and reserve its load.",
    "counter errors{code,phase,route,model}": "Errors that the gateway itself answered, by code and phase. Route and "
    "model are empty if the request was not read.",
    "counter experimental route_prompt_tokens{route,model,cached}": "Prompt tokens of answers that report cached "
    "tokens, by whether they were cached.",
    "counter retries{point}": "Attempts that failed and were retried on another worker, by failure point.",
    "counter handovers{outcome}": "Requests planned on two workers, by outcome. handed_over: the decode worker "
    "answered with the KV cache of the prefill worker. stopped: the request ended before. All others ran on one "
    "worker: prefill_failed, nothing_handed_over (no usable transfer parameters), lease_expired, decode_worker_lost, "
    "decode_failed.",
    "counter pulls{outcome}": "Requests whose worker was to pull the start of the prompt from another one, by outcome. "
    "pulled: the answer reported at least half of the pulled tokens as cached. missed: it reported less. not_reported: "
    "it reported no cached tokens. failed: the request ran without a pull. stopped: it ended before its answer.",
    "histogram wait handover_seconds{step}": "Time of the steps of a KV handover: prefill, from its request to its "
    "answer; transfer, from the decode worker's request to its first event, without the time in which it waited for "
    "the prefill; sidecar, from the request to its first event where the decode worker's sidecar runs both.",
    "counter migrations{trigger,outcome}": "Answers in progress whose worker died, on routes with migration, by what "
    "showed the death (cut, abort, error_event, silence; drain or preempted: it drains, or is needed for an earlier "
    "class, and has not died; or what a second worker did: ids_ignored, too_much_text, unreadable) and "
    "by outcome. resumed: the answer went on at another worker. failed: no other one took it. left: the client left "
    "first. All other outcomes say why it could not go on.",
    "histogram wait migration_gap_seconds": "Time between the last bytes of a worker that died and the next text, of "
    "another worker.",
    "counter migration_requests{reason}": "Streams of routes with migration by whether they can go on at another "
    "worker: tracked, or why not. A tracked stream counts once more if its worker refuses the question for ids "
    "(refused_ids), or if it ends without ids (no_ids) or without a known place to go on from (seam).",
    "counter retry_budget_exhausted": "Retries that the retry budget did not allow.",
    "counter worker_deaths{outcome}": "Workers that died while requests waited there for their first token. Outcome "
    "blamed: these requests count as suspects; ambiguous: more than four different requests waited, so none does. "
    "Refused requests are errors with the code request_crashes_workers.",
    "counter fallbacks{wanted,served}": "Requests that went to a fallback of their model, by both names in the "
    "settings.",
    "counter redials": "Requests repeated on a new connection because a pooled one had died while idle.",
    "counter client_aborts{phase}": "Clients that left before their response ended, by phase.",
    "counter requests_by_key{key}": "Authenticated requests, by the name of their API key.",
    "counter reloads{what,outcome}": "Reloads of changed files, by content (api_keys, admin_token, tls, admin_tls, "
    "worker_tls) and outcome: ok, or failed, which leaves the old content in use.",
    "counter rewrites{rewrite}": "Request bodies that the gateway changed, by rewrite: isolate_cache, observe_usage, "
    "relearn, engine_priority or model.",
    "gauge client_connections": "Open client connections, including TLS handshakes.",
    "counter connections_closed{reason}": "Client connections that the gateway closed, by reason: refused at "
    "limits.max_connections; evicted there (the longest idle, or slow TLS handshakes) in favour of new ones; or "
    "slow_reader, when the unsent response bytes of all clients exceeded their limit.",
    "gauge worker_connections": "Open connections to workers, including idle ones.",
    "gauge tasks": "Tasks of the event loop: a few per worker, and one per scrape.",
    "gauge buffered_bytes{content}": "Bytes in buffers, by content: requests (bodies, until their worker answers) or "
    "responses (not read yet by slow clients).",
    "gauge buffered_limit_bytes{content}": "Limit of buffered_bytes: limits.max_buffered_body_bytes and "
    "limits.max_buffered_response_bytes.",
    "gauge picker_streams": "Streams of gateways that are open at the endpoint picker.",
    "counter picks{outcome,pool}": "Answers of the endpoint picker, by outcome (picked, the code of an error, or "
    "cancelled, if the gateway gave up before the pick) and by pool, if picker.pools has any.",
    "gauge active_requests": "Requests in flight, including streams.",
    "gauge route_requests{route,state}": "A route's requests now, if it has a limit or queue, by state: running (on "
    "workers or held) or queued.",
    "counter route_refusals{route}": "Requests refused because their route's queue was full or too slow.",
    "counter service_level_requests{route,target,met}": "Streams with a service level, by route, target (ttft or tpot) "
    "and whether they met it.",
    "gauge tenant_use{tenant,quota}": "What a tenant uses of its quotas now: max_queued_requests or "
    "max_buffered_body_bytes.",
    "counter tenant_refusals{tenant,quota}": "Requests refused by a tenant's quota: max_queued_requests or "
    "max_buffered_body_bytes.",
    "gauge max limit_remaining{account,unit}": "What is left of the limits of a tenant or key, by unit: requests or "
    "tokens of the bucket, or concurrent_requests. Below 0: more was used than the estimate.",
    "counter limit_admitted_requests{account}": "Requests that were charged to a tenant's or key's limits.",
    "counter limit_used_tokens{account}": "Tokens of ended requests that a tenant's or key's limits were charged.",
    "counter limit_refusals{account,limit}": "Requests refused with 429, by limit: requests_per_minute, "
    "tokens_per_minute or max_concurrent_requests.",
    "gauge queued_requests": "Requests queued now because no worker is ready.",
    "gauge held_requests{route,model}": "Requests held now by route and model: the policy waits for a better moment to "
    "send them.",
    "gauge class_waiting_requests{request_class}": "Requests that wait now for their turn, by class.",
    "gauge class_waiting_seconds{request_class}": "Work of the requests that wait for their turn, in seconds of one "
    "worker, by class.",
    "counter class_refusals{request_class,reason}": "Requests refused by their class: predicted-wait (at arrival), "
    "waited (for as long as it allows) or queue-full.",
    "counter class_preemptions{request_class,outcome}": "Requests that left their worker for one of an earlier class, "
    "by their class. waits: no byte of their answer had come, and they wait again. left: the answer ended, or goes on "
    "at another worker.",
    "counter class_shadow_requests{request_class,outcome}": "With admission: shadow, requests by class and by what "
    "classes would have done: sent (at once), waits, refused (at arrival), expires (refused late) or gives_way.",
    "gauge class_tenant_waiting_requests{request_class,tenant}": "Requests that wait now for their turn, by class and "
    "tenant, or key without a tenant, of the hundred with the most.",
    "counter class_service_level_requests{request_class,target,met}": "Streams of a class with a service level, by "
    "class, target (ttft or tpot) and whether they met it.",
    # identity of prompts
    "gauge max models{tokenizer}": "Models by what tokenises their prompts: local, worker (its /tokenize, which is "
    "slower), or none, so that prompts have no token ids.",
    "counter identified_prompt_tokens{source}": "Prompt tokens of identified requests, by source: memory (of tokenised "
    "prefixes) or tokenizer.",
    # decisions
    "counter decisions{worker,residency}": "Placed requests, by worker and residency of its view.",
    "counter route_decisions{route,policy}": "Placed requests, by route and policy.",
    "counter decision_log_lost_windows": "Windows of the decision log that ended early because a line was lost.",
    "counter attempt_failures{worker,point}": "Attempts that a worker failed, by worker and failure point.",
    "counter policy_errors{policy}": "Times the policy raised or returned an invalid decision, and was bypassed.",
    "counter prompt_tokens{worker}": "Prompt tokens of placed requests.",
    "counter cached_tokens{worker,source}": "Cached tokens of responses that report them, by source: predicted (by the "
    "gateway) or reported (by the worker).",
    "counter cached_comparisons{worker,outcome}": "Predictions compared with reports: equal, over or under.",
    "counter experimental misrouted_requests{worker}": "Responses with fewer cached tokens than predicted, and fewer "
    "than another worker was predicted to have. Their share of cached_comparisons is the rate of incorrect routing.",
    "counter cached_differences{worker,reason}": "Predictions that differed from reports, by reason: scheduled_since, "
    "slower_tier, evicted_while_queued, reserved_not_scheduled, cleared, approximate, or other if none is known.",
    # fleet
    "gauge max ready_workers": "Workers that get requests.",
    "gauge max model_ready_workers{model}": "Workers that get requests for the model, of each model that a worker has "
    "listed; at most 256 models.",
    "gauge max worker_state{endpoint,state}": "1 for the state of the endpoint, 0 for the other states.",
    "gauge max queued_prefill_seconds{worker}": "Queue wait: estimated time until the prefill of a new prompt would "
    "start on the worker.",
    "gauge experimental min kv_transfer_tokens_per_second{worker,kind}": "Prompt tokens whose KV cache moves to the "
    "worker per second, as learned: its slowest link. Kind: handover or pull.",
    "gauge max worker_requests{worker,state}": "Requests on the worker, as it last reported, by state: running or "
    "waiting.",
    "gauge max worker_kv_usage_ratio{worker}": "Share of the worker's KV cache in use, as it last reported.",
    # roles, for autoscalers
    "gauge experimental max desired_replicas{role}": "Workers that the load of a role needs, by the targets in "
    "`scaling`.",
    "gauge experimental max role_utilisation_ratio{role,resource}": "Mean share of a role's workers in use, by "
    "resource: kv_cache (by requests in progress) or prefill (time spent on prefills).",
    "gauge experimental max role_queued_prefill_seconds{role}": "Mean queue wait of a role's workers.",
    "gauge experimental min role_service_level_ratio{role}": "Share of the last minute's streams that met their "
    "service levels; missing while few were judged.",
    # residency
    "gauge max view_residency{worker,residency}": "1 for the residency of the worker's view, 0 for the other values.",
    "gauge max index_blocks{worker}": "Blocks known to be resident on the worker.",
    "gauge min event_link_up{worker}": "1 while the worker's KV event publisher is connected.",
    "gauge max event_lag_seconds{worker}": "Age of the newest batch of KV events at its arrival, by the clocks of "
    "worker and gateway.",
    "counter event_gaps{worker}": "Gaps in the sequence of a worker's KV events.",
    "counter event_replays{worker,outcome}": "Replays requested, by outcome: filled, empty, partial, timeout, broken "
    "or unavailable.",
    "counter event_faults{worker,kind}": "What was not read of a worker's KV events, by kind: batch, event (of a known "
    "type), unknown_event (of another type), block (in a slower tier, by an unknown hash or in another size), or "
    "restart (of the sequence).",
    # workers and processes
    "counter probes{kind,outcome}": "Probes of workers, by kind (quick, full, load) and outcome (ok, failed).",
    "counter late_probes{verdict}": "Probes that timed out, by verdict: counted; progress (the worker worked "
    "meanwhile) and nobody (no worker answered) do not count; needed (too few other workers are left).",
    "gauge max workers_kept": "Workers in use in spite of their time-outs, because too few others are left.",
    "counter self_tests{verdict}": "Self-tests ended, by verdict.",
    "gauge max state_problems{problem}": "Problems of state_dir: unsaved (1 while changes of the admin API could not "
    "be written), set_aside (files that this process could not use in whole, and kept under another name).",
    "histogram lag loop_lag_seconds": "Delay of the event loop in waking a timer.",
    "gauge max memory_limit_bytes{source}": "Memory limit of the process, by its source.",
    "gauge processes": "Gateway processes that answered this scrape.",
    "gauge max build_info{version,python,compiled}": "Always 1; the labels say what runs: Warmroute's version, "
    "Python's, and whether the hot path is compiled.",
    "gauge max discovery_up{source}": "Whether a source of workers answers (1) or fails (0).",
    "counter process_restarts": "Gateway processes that ended unexpectedly and were restarted.",
    "counter experimental traces{outcome}": "Requests whose traces were sent, dropped as the queue was full, or not "
    "taken by the receiver (failed).",
    "counter log_lines_dropped": "Log lines dropped because their reader is too slow, stuck or gone.",
    # gateways of a fleet
    "gauge max replica_alone": "1 while Redis is configured and this gateway's own messages do not come back.",
    "gauge max replicas_apart": "Gateways of the fleet that have another version of the shared changes, or a lease and "
    "are not heard.",
    "counter replica_faults{kind}": "Failed calls of Redis (errors), messages of other gateways that did not arrive "
    "(missed), messages that could not be read (malformed), and placements that could not be stored (unplaced) or sent "
    "(dropped).",
    # sidecar
    "gauge sidecar_registered{registry}": "1 while a registry holds the worker.",
}
"""The type, how processes are merged if that is not their sum, the buckets of a histogram, and the name without prefix
with its labels; then the meaning. Labels `route` and `model` of a request are empty before they are known, and where
there is none. What all processes see alike has `max` or `min`."""


def _spec(written: str, text: str) -> MetricSpec:
    *words, signature = written.split()
    name, _, labels = signature.removesuffix("}").partition("{")
    return MetricSpec(
        f"warmroute_{name}",
        Kind(words[0]),
        text,
        tuple(labels.split(",")) if labels else (),
        next((_BUCKETS[word] for word in words if word in _BUCKETS), ()),
        next((Merge(word) for word in words if word in ("max", "min")), Merge.SUM),
        Stability.EXPERIMENTAL if "experimental" in words else Stability.STABLE,
    )


CATALOGUE = tuple(_spec(written, text) for written, text in _TABLE.items())

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

"""The JSON documents of the admin API. Times are seconds, sizes tokens or blocks as named; shares run from 0 to 1.

A class here ends in Document if another class of the router has the same name. The API drops that suffix.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from backends.discovery.registration import LEASE_S, KvEvents
from backends.vllm.operations import OperationName
from router.config.model import (
    Count,
    KvEventsConfig,
    ModelConfig,
    PolicyConfig,
    Positive,
    RateLimitsConfig,
    RouteConfig,
    Seconds,
    Secret,
    TenantConfig,
    WorkerName,
    WorkerRole,
    WorkerWeight,
)
from router.placement.decision_log.summary import Choices, DifferentChoice
from router.placement.policies.shadow import ShadowTotals
from router.security.token import Role
from router.telemetry.history import TrafficPoint


class Shape(msgspec.Struct, kw_only=True, omit_defaults=False):
    """Base of the documents that the API answers with."""


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of the bodies that the API accepts; an unknown field is an error."""


class ProblemDocument(Shape):
    """An error (RFC 9457), served as application/problem+json. `code` is stable."""

    type: str
    title: str
    status: int
    detail: str
    code: str


class DifferenceDocument(Shape, omit_defaults=True):
    """A setting with its values before and after a change, without secrets. A value that is missing was not set.

    The values of a policy are those that apply, defaults included.
    """

    path: str
    before: Any = msgspec.UNSET
    after: Any = msgspec.UNSET


class ChangeDocument(Shape):
    """A change of the desired state, or what a dry run would change.

    `version` is that of the desired state now. `kept`: the change outlives the process, because `state_dir` is set.
    """

    version: int
    dry_run: bool
    kept: bool
    differences: list[DifferenceDocument]


class ConflictDocument(Shape, omit_defaults=True):
    """A setting that the admin API had changed to `api`, and that a reload changed to `file`, which wins."""

    path: str
    api: Any = msgspec.UNSET
    file: Any = msgspec.UNSET


class Pending(Shape, omit_defaults=True):
    """A setting that cannot change while the gateway runs: its value now, the value that was read, and what to do."""

    path: str
    do: str
    now: Any = msgspec.UNSET
    read: Any = msgspec.UNSET


class ReloadDocument(ChangeDocument):
    """A reload of the settings. Those that cannot change now are `pending`; everything else was applied."""

    conflicts: list[ConflictDocument]
    pending: list[Pending]


class DesiredStateDocument(Shape):
    """What operators can change while the gateway runs, without secrets. `settings` has the workers by id.

    `changed_by_api` are the differences from the settings of file, environment and flags. `kept`: changes outlive the
    process, because `state_dir` is set.
    """

    version: int
    kept: bool
    settings: dict[str, Any]
    changed_by_api: list[DifferenceDocument]


class RevisionSummary(Shape):
    """One change of the desired state. `number` is the version that it made, and `changes` counts its differences.

    `source` is start, api, reload or restore. `who` is the name of the caller's token, where known.
    """

    number: int
    at: str
    source: str
    who: str | None
    what: str
    changes: int


class RevisionDocument(RevisionSummary):
    """One change of the desired state, with its differences from the version before."""

    differences: list[DifferenceDocument]


class Revisions(Shape):
    """One page of the revisions that are kept, newest first."""

    revisions: list[RevisionSummary]
    next: str | None


class Live(Shape):
    """The process runs."""

    status: str = "alive"


class SourceDocument(Shape):
    """One source of workers. `state` is ok, failing, or waiting for its first answer.

    A source that fails keeps the workers of its last answer; `failing_since` and `error` say since when and why, and
    `error` stays after the source has recovered. `refused` counts entries that cannot be used, `refused_first` names
    some.
    """

    name: str
    kind: str
    state: Literal["ok", "failing", "waiting"]
    workers: int
    changed_at: str | None
    failing_since: str | None
    error: str | None
    failures: int
    refused: int
    refused_first: list[str]


class Ready(Shape, kw_only=True):
    """The gateway can serve requests: `processes_ready` of its `processes` are ready. `alone`: Redis is configured and
    does not answer, so that the gateway goes on with what it has. `sources` are given with `verbose`.
    """

    status: str = "ready"
    workers_ready: int
    workers: int
    processes_ready: int = 1
    processes: int = 1
    alone: bool = False
    sources: list[SourceDocument] | None = None


class NewWorker(Body):
    """A worker to add.

    `kv_events` is needed only if the worker's /kv_event_sources does not list its addresses. `api_key` is the key that
    vLLM got; the API never returns it. `labels` are for the policy. `name`, `weight` and `role` are those of the
    setting `workers`.
    """

    url: str
    kv_events: KvEventsConfig | None = None
    api_key: Secret | None = None
    labels: dict[str, str] = {}
    name: WorkerName | None = None
    weight: WorkerWeight = 1.0
    role: WorkerRole = "mixed"

    def __repr__(self) -> str:
        """Leave out the key."""
        return f"NewWorker(url={self.url!r}, name={self.name!r}, labels={self.labels!r})"


class KvEventsChange(Body):
    """A merge patch of `kv_events`. Null takes a value back to its default."""

    endpoint: str | msgspec.UnsetType = msgspec.UNSET
    replay_endpoint: str | msgspec.UnsetType | None = msgspec.UNSET
    topic: str | msgspec.UnsetType | None = msgspec.UNSET


class WorkerChange(Body):
    """A merge patch (RFC 7396) of a worker's settings: what it leaves out stays, and null takes a setting back to its
    default. A label that is null is removed."""

    name: WorkerName | msgspec.UnsetType | None = msgspec.UNSET
    weight: WorkerWeight | msgspec.UnsetType | None = msgspec.UNSET
    role: WorkerRole | msgspec.UnsetType | None = msgspec.UNSET
    labels: dict[str, str | None] | msgspec.UnsetType | None = msgspec.UNSET
    maintenance: bool | msgspec.UnsetType | None = msgspec.UNSET
    kv_events: KvEventsChange | msgspec.UnsetType | None = msgspec.UNSET


class LoraName(Body):
    """A LoRA adapter by the name under which it is served."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class LoraAdapter(Body):
    """A LoRA adapter to load: the name under which it is served, and its folder on the worker's host."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class SelectedOperation(Body):
    """An operation on all workers that serve `model`, and have all of `labels`, and the role `role`; or on `all`.

    `lora_name` and `lora_path` are for adapters; the path is one on the workers' hosts. A pause waits up to `wait_s`
    for the requests that run on a worker.
    """

    operation: OperationName
    model: str | None = None
    labels: dict[str, str] | None = None
    role: str | None = None
    all: bool = False
    lora_name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    lora_path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)] | None = None
    wait_s: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 60


class WorkerResult(Shape):
    """What became of an operation on one worker. `detail` says why it is not done.

    `outcome` is done, refused, unknown (the worker gave no answer, and may have done it) or dry_run.
    """

    worker: str
    outcome: Literal["done", "refused", "unknown", "dry_run"]
    name: str | None = None
    detail: str | None = None


class WorkerResults(Shape):
    """The result of an operation on each worker, in the order in which they were added."""

    operation: OperationName
    results: list[WorkerResult]


class ServedModelDocument(Shape):
    """A served model. `parent` is set for a LoRA adapter. `prompts` says where prompt token ids come from."""

    id: str
    root: str | None
    parent: str | None
    max_model_len: int | None
    prompts: str


class Load(Shape):
    """Reserved load: requests and prompt tokens queued for prefill, running requests, and the context tokens they hold.

    `foreign_requests` are requests in the worker's report that this gateway did not send. `stuck_kv_tokens` is the KV
    cache of a prefill worker that neither requests nor leases of KV handovers explain, for longer than a lease; null
    where that is not known, and where several gateways share the workers (`redis.url`).
    """

    queued_requests: int = 0
    queued_tokens: int = 0
    running_requests: int = 0
    kv_tokens: int = 0
    foreign_requests: int = 0
    stuck_kv_tokens: int | None = None


class Estimates(Shape):
    """Speeds learned from first tokens and whole answers; null until learned.

    `queue_wait_s` is the time until the prefill of a new prompt would start. `utilisation` is the share of time spent
    on prefills. `speed` says which speed these two follow from: the candidate's own (learned), the median of others
    (fleet) or, while no worker has learned one, a prior that is the same for all (prior). `relative_error` is the
    standard error of a predicted time to first token. `decode_step_context_ns` is the time that each context token on
    the candidate adds to a decode step.
    """

    observations: int = 0
    prefill_token_us: float | None = None
    first_token_fixed_ms: float | None = None
    relative_error: float | None = None
    decode_step_context_ns: float | None = None
    queue_wait_s: float | None = None
    utilisation: float | None = None
    speed: Literal["learned", "fleet", "prior"] = "prior"


class PredictedCached(Shape):
    """Predicted cached tokens compared with reported ones, over the responses that report them.

    `equal`, `over` and `under` count responses. `differences` counts differing responses by reason. `pending` counts
    those whose reason is not known yet.

    Reasons why more was cached: scheduled_since (the blocks or their events came after the decision), slower_tier (the
    worker also caches outside its GPU). Reasons why less was cached: evicted_while_queued (the first missing block was
    evicted after the decision), reserved_not_scheduled (the missing blocks belonged to a request that had not been
    computed so far). Reasons for either: cleared (the cache was cleared, or the worker restarted), approximate (the
    view was not exact), other (events were lost, or the router and the worker hash different blocks).
    """

    equal: int = 0
    over: int = 0
    under: int = 0
    absolute_error_tokens: int = 0
    reported_tokens: int = 0
    differences: dict[str, int] = {}
    pending: int = 0


class Events(Shape):
    """The KV event stream of one candidate.

    `lag_s` is the age of the newest batch on arrival, by the clocks of both hosts. `gaps` counts losses,
    `replayed_batches` batches fetched again, `decode_errors` unreadable batches. After a loss that a replay did not
    fill, `relearn_asks` counts requests that asked the worker to announce cached blocks again. `reannounced_blocks`
    counts these blocks, and `relearned_blocks` the new blocks among them. `relearned` counts how often the view became
    complete.
    """

    endpoint: str
    linked: bool = False
    links: int = 0
    lag_s: float | None = None
    replaying: bool = False
    batches: int = 0
    bytes: int = 0
    next_seq: int = 0
    gaps: int = 0
    replayed_batches: int = 0
    restarts: int = 0
    decode_errors: int = 0
    unknown_events: int = 0
    relearn_asks: int = 0
    reannounced_blocks: int = 0
    relearned_blocks: int = 0
    relearned: int = 0


class SelfTestDocument(Shape):
    """Result of the self-test, which sends one short prompt twice. `verdict` is exact, approximate, off or unknown."""

    verdict: str
    reason: str


class LinkDocument(Shape):
    """A link over which KV cache came from the candidate `sender`, with the speed that decisions count on now.

    `kind` is handover or pull. `transfers` were observed. A link that has not been used for some minutes has the speed
    of the fleet.
    """

    sender: str
    kind: Literal["handover", "pull"]
    tokens_per_s: float
    latency_s: float
    transfers: int


class CandidateDocument(Shape):
    """One candidate: an endpoint, or one data-parallel rank of it (``host:port#rank``).

    `residency` is exact, approximate, unknown or off, and `reason` says why. `blocks` counts the blocks in its cache
    view. `events` is null without KV events, and `self_test` is null until a self-test has ended. `links` are those
    over which KV cache has come to the candidate, slowest first, at most 32.
    """

    id: str
    rank: int | None
    residency: str
    reason: str
    blocks: int
    block_size: int
    capacity_blocks: int | None
    capacity_tokens: int | None
    load: Load
    estimates: Estimates
    predicted_cached: PredictedCached
    events: Events | None
    self_test: SelfTestDocument | None
    links: list[LinkDocument] = []


class KvConnector(Shape):
    """What matters for a KV handover with this worker. Null: the worker does not report it.

    `cache_type` is --kv-cache-dtype, `hash_algorithm` --prefix-caching-hash-algo. The rest is reported in vLLM's
    development mode alone, while `handover.connector` is set: `name` and `role` of the connector, its
    `load_failure_policy`, its lease in seconds (`lease_s`, null for vLLM's default), the `model_type` (dtype), and host
    and port of NIXL's side channel.
    """

    cache_type: str | None
    hash_algorithm: str | None
    name: str | None
    role: str | None
    load_failure_policy: str | None
    lease_s: float | None
    model_type: str | None
    side_host: str | None
    side_port: int | None


class Worker(Shape):
    """One endpoint. `state` is starting, ready, asleep, unhealthy, half_open or draining; `reason` says why.

    `name`, `weight`, `role` and `labels` are those of the setting `workers`. `restarts` counts restarts since the
    worker was added. `in_flight` counts the requests at the worker now, with those of a gateway that this one took over
    from. `notes` name the data that the worker does not report, with the fix.

    `source` says where the worker's settings come from: settings, api, or the name of a source in `discovery`, or
    registered. `also` are further sources that name it. `leaving`: no source names it any more, so it is drained and
    leaves.
    """

    id: str
    url: str
    state: str
    reason: str
    version: str | None
    restarts: int
    in_flight: int
    models: list[ServedModelDocument]
    candidates: list[CandidateDocument]
    notes: list[str]
    labels: dict[str, str]
    name: str | None
    weight: float
    role: str
    kv_connector: KvConnector | None = None
    source: str = ""
    also: list[str] = []
    leaving: bool = False


class Workers(Shape):
    """The workers of one page, in the order in which they were added.

    `next` is the `cursor` of the following page, or null. `sources` are the sources of workers.
    """

    workers: list[Worker]
    next: str | None = None
    sources: list[SourceDocument] = []


class FleetRow(Shape):
    """One candidate of the endpoint `worker` in short, for an overview.

    `in_flight` counts the requests at the endpoint. `kv_usage` is the share of the KV cache that running requests hold,
    as the worker last reported, and `idle_share` the share that idle context of ended turns holds. `cached_share` is
    the share of prompt tokens found cached, `ttft_s` the mean time to first token and `gap_s` the median gap between
    tokens: each of the last one to two minutes. `predicted_share` is the share of responses whose cached tokens were
    predicted exactly. null: nothing to measure. `prompts` says how the prompts of up to three models become
    token ids.
    """

    id: str
    worker: str
    name: str | None
    state: str
    reason: str
    draining: bool
    role: str
    residency: str
    view_reason: str
    in_flight: int
    queue_wait_s: float
    kv_usage: float | None = None
    idle_share: float | None = None
    cached_share: float | None = None
    predicted_share: float | None = None
    ttft_s: float | None = None
    gap_s: float | None = None
    prefill_tokens_per_s: float | None = None
    prompts: str = ""


class FleetOverview(Shape):
    """The candidates of one page, in the order in which they were added.

    `next` is the `cursor` of the following page, or null.
    """

    rows: list[FleetRow]
    next: str | None = None


class Traffic(Shape):
    """The traffic of the last hour in points of ten seconds, newest first. `next` is the `cursor` of the following
    page, or null."""

    points: list[TrafficPoint]
    next: str | None = None


class PrefixDocument(Shape):
    """A shared prefix. `hash` is that of its last block; no text is kept.

    `hits` counts the first turns that found it cached, of about the last quarter of an hour, and `saved_tokens` the
    prompt tokens that these did not compute. `copies` of it are in the KV caches whose events are followed, on
    `workers` (16 at most), and take `kv_tokens` of them. `name` is the latest one that a client gave it in the header
    `prefix_name_header`; of several processes, the first one that has a name counts.
    """

    hash: str
    tokens: int
    hits: float
    saved_tokens: int
    copies: int
    kv_tokens: int
    workers: list[str]
    name: str | None = None


class Prefixes(Shape):
    """The prefixes that save the most prompt tokens, best first."""

    prefixes: list[PrefixDocument]


class Whoami(Shape):
    """The caller: the name of its token, null if the port needs none, and its role."""

    name: str | None
    role: Role


class NewRegistration(Body):
    """A worker that registers itself for `ttl_s` seconds. It registers again before they have passed.

    The fields are those of a worker in `discovery`. `started_at` is in seconds since 1970.
    """

    url: str
    name: str | None = None
    model: str | None = None
    role: str | None = None
    weight: float | None = None
    labels: dict[str, str] = {}
    kv_events: KvEvents | None = None
    started_at: float | None = None
    ttl_s: Annotated[float, msgspec.Meta(ge=1, le=3600)] = LEASE_S


class RegistrationDocument(Shape):
    """A registration, which lasts for `ttl_s` seconds from now."""

    id: str
    ttl_s: float


class LogLevel(Body):
    """The lowest level that is logged, in all processes of the gateway and until it ends."""

    level: Literal["debug", "info", "warning", "error"]


class AuditEntry(Shape):
    """One change that was asked of the admin port.

    `who` is the name of the token, null if the port needs none or the request has no valid one. `peer` is the address
    of the client. `operation` is null if the request was refused before its operation was known. `change` is the body
    without secrets, or its size if it is long. `differences` are the settings that changed, and `version` is the ETag
    of the desired state afterwards. `outcome` is done, dry_run (nothing was to change), refused, failed, or interrupted
    (no answer was sent). `code` and `detail` are those of the problem document.
    """

    number: int
    at: str
    who: str | None
    peer: str | None
    operation: str | None
    method: str | None
    target: str | None
    change: Any
    differences: list[DifferenceDocument]
    version: str | None
    outcome: str
    status: int | None
    code: str | None
    detail: str | None
    duration_s: float


class AuditPage(Shape):
    """The entries of one page, newest first. `next` is the `cursor` of the following page, or null."""

    entries: list[AuditEntry]
    next: str | None = None


class NewPolicy(Body):
    """The policy to use from the next request on.

    `hold` and `lanes` are false, true, or true with parameters. Without them, what is on stays on, and what was
    switched off stays off; a further policy that is new has the rule's default.
    """

    rule: str
    params: dict[str, Any] = {}
    hold: bool | dict[str, Any] | None = None
    lanes: bool | dict[str, Any] | None = None


class PolicyQuestion(Body):
    """The policy to ask what it would have chosen. Its fields are those of a policy to use."""

    rule: str
    params: dict[str, Any] = {}
    hold: bool | dict[str, Any] | None = None
    lanes: bool | dict[str, Any] | None = None


class WhatIfDocument(Shape):
    """What another policy would have chosen at the latest decisions.

    `kept` decisions are in memory. `decisions` of them were made again: those that a policy made and that still have
    the views of all candidates. The first of them is `since_s` seconds old. `elsewhere` chose another worker.
    `recorded.held` counts requests that the policy would have held and that could not wait, and `replayed.held` those
    that this policy would have held. At `without_prompt` decisions the hashes of the prompt are no longer kept, so that
    a rule that reads them sees a prompt without an identity. At `failures` decisions the policy failed and the fallback
    chose. `recorded` and `replayed` have sums, and the means are null without a decision. Times to first token are
    those that the gateway predicted. `differences` are the newest.
    """

    rule: str
    kept: int
    decisions: int
    elsewhere: int
    without_prompt: int
    failures: int
    since_s: float | None
    recorded: Choices
    replayed: Choices
    differences: list[DifferentChoice]
    elsewhere_share: float | None = None
    recorded_ttft_s: float | None = None
    replayed_ttft_s: float | None = None
    recorded_cached_share: float | None = None
    replayed_cached_share: float | None = None


class AvailablePolicy(Shape):
    """A rule that can be chosen, its parameters with type and default, and the terms of its cost in one line each.

    `hold` and `lanes` say whether these wrappers are around it by default.
    """

    rule: str
    summary: str
    params: dict[str, Any]
    terms: dict[str, str]
    hold: bool
    lanes: bool


class AvailableWrapper(Shape):
    """A wrapper around any rule, and its parameters with type and default."""

    summary: str
    params: dict[str, Any]


class PolicyDocument(Shape):
    """The policy in use, the rules that can be chosen, and the wrappers around them.

    `hold` and `lanes` are false, or the parameters in force. `statistics` is the policy's own state, in the process
    that answers.
    """

    rule: str
    params: dict[str, Any]
    hold: bool | dict[str, Any]
    lanes: bool | dict[str, Any]
    statistics: dict[str, Any]
    available: list[AvailablePolicy]
    wrappers: dict[str, AvailableWrapper]


class Question(Body, kw_only=True):
    """A request as a client would send it to the public port.

    `body` is the request's JSON, or that JSON as text. `key` is the name of the client's API key. The key's tenant
    decides which parameters the request may have, and which cached prefixes it shares.
    """

    path: str = "/v1/chat/completions"
    headers: dict[str, str] = {}
    key: str | None = None
    body: msgspec.Raw


class CandidateView(Shape):
    """The state of one candidate at the time of the decision.

    Running requests hold `kv_tokens` of its `kv_capacity_tokens` (0: not known). `idle_tokens` is idle context of ended
    turns. `first_token_s` is `queue_wait_s` + `prefill_s`, the seconds to the first token, and `error_s` their standard
    error, which is no part of the cost. `speed` says where these
    times come from: learned speeds or, while no worker has learned one, a prior that is the same for all workers.
    `cost` is the policy's cost in `unit`; lower is better. `terms` are its named parts. A policy counts the load
    divided by `weight`, which cost and terms show. `name` is the worker's name now, if it has one.
    """

    worker: str
    weight: float
    residency: str
    cached_tokens: int
    uncached_tokens: int
    queued_tokens: int
    running_requests: int
    kv_tokens: int
    idle_tokens: int
    kv_capacity_tokens: int
    queue_wait_s: float
    prefill_s: float
    first_token_s: float
    error_s: float
    utilisation: float
    speed: Literal["learned", "prior"]
    cost: float | None
    unit: str
    terms: dict[str, float]
    name: str | None = None


class PassedOverModel(Shape):
    """A model without a worker for the request: the reason, and one for each worker that cannot take it."""

    model: str | None
    reason: str
    excluded: dict[str, str]


class HandoverPair(Shape):
    """Two workers that could share the request: the cost in seconds, and its terms, which add up to it."""

    prefill: str
    decode: str
    cost_s: float
    terms: dict[str, float]


class HandoverAlone(Shape):
    """One worker that could serve the whole request: the cost in seconds, and its terms, which add up to it."""

    worker: str
    cost_s: float
    terms: dict[str, float]


class HandoverExplanation(Shape):
    """Whether a KV handover would be used, and why. `pairs` and `alone` are the best five of each, best first.

    With `pays` the first pair would share the request, and else `choice` would get all of it. `terms` explains each
    term in one line.
    """

    pays: bool
    reason: str
    pairs: list[HandoverPair] = []
    alone: list[HandoverAlone] = []
    terms: dict[str, str] = {}


class ExplanationDocument(Shape):
    """The decision that a request would get now; nothing was sent or reserved.

    `action` is dispatch, hold, queue (no worker is ready) or reject, and `reason` says why. A held request waits in the
    gateway for at most `hold_s`, then goes to `choice`. `choice` is null for queue and reject. `candidates` come best
    first. `terms` explains each term of their cost in one line. `excluded` gives a reason for each other worker.
    `prompt_tokens` is counted if `prompt_tokens_exact`, else estimated from the size of the body or of the text.
    `policy` is the name in `policies`, or the rule of `policy`. `choice_name` is the name of the chosen worker, if it
    has one. `passed_over` are the other models that were tried, in order, of the request's model and its fallbacks.
    If a fallback would serve, `model` is the fallback. `handover` is null without `handover.connector`.
    """

    request_id: str
    model: str | None
    prompt_tokens: int
    prompt_tokens_exact: bool
    route: str
    policy: str
    rule: str
    choice: str | None
    action: str
    hold_s: float
    reason: str
    candidates: list[CandidateView]
    terms: dict[str, str]
    excluded: dict[str, str]
    choice_name: str | None = None
    passed_over: list[PassedOverModel] = []
    handover: HandoverExplanation | None = None


class HandoverLegDocument(Shape):
    """A part of a KV handover: `leg` is prefill or decode, and `with_worker` has the other part.

    All parts of one handover have the same `plan`, with a prefill that was repeated on another worker.
    """

    leg: str
    plan: int
    with_worker: str


class DecisionDocument(Shape):
    """One attempt at one request. `outcome` is running, finished, cancelled or "failed: ...".

    `waited_s` is the time from arrival to this attempt. It is short unless the policy held the request or an attempt
    failed. `residency` says how far `predicted_cached_tokens` can be trusted. It is approximate if only the text of the
    prompt was known. `difference` is the reason why the worker reported another number (pending, or a reason of
    `PredictedCached`), or null. `process` is the number of the process that decided. The first decisions of a page
    have all `candidates`, up to 32,768 in all, and the others only the chosen one; so have those that are older than
    the candidates in memory (`decisions_kept`). `cursor` is the place of the decision in the log: a page with it starts
    at the decision before. `worker_name` is the worker's name now, if it has one. `handover` is null unless the attempt
    is a part of a KV handover.
    """

    cursor: str
    at: str
    age_s: float
    request_id: str
    model: str | None
    prompt_tokens: int
    prompt_tokens_exact: bool
    waited_s: float
    attempt: int
    route: str
    policy: str
    worker: str
    reason: str
    residency: str
    predicted_cached_tokens: int | None
    reported_cached_tokens: int | None
    difference: str | None
    ttft_s: float | None
    duration_s: float | None
    outcome: str
    candidates: list[CandidateView]
    worker_name: str | None = None
    process: int = 0
    handover: HandoverLegDocument | None = None


class Decisions(Shape):
    """The decisions of one page, newest first.

    `next` is the `cursor` of the following page, or null. With filters a page may be short, or empty, although more
    follow: one call reads at most 10,000 decisions of each process.
    """

    decisions: list[DecisionDocument]
    next: str | None = None


class NewRoutes(Body):
    """The routes to use. Their fields are those of the setting `routes`."""

    routes: tuple[RouteConfig, ...]


class Policies(Shape):
    """The further policies by name. Their fields are those of the setting `policies`."""

    policies: dict[str, PolicyConfig]


class SloChange(Body):
    """A merge patch of `slo`. Null removes a target."""

    ttft: Seconds | msgspec.UnsetType | None = msgspec.UNSET
    tpot: Seconds | msgspec.UnsetType | None = msgspec.UNSET


class ModelChange(Body):
    """A merge patch (RFC 7396) of a model's settings: what it leaves out stays, and null takes a setting back to its
    default."""

    dir: str | msgspec.UnsetType | None = msgspec.UNSET
    chat_template: str | msgspec.UnsetType | None = msgspec.UNSET
    tokenizer: str | msgspec.UnsetType | None = msgspec.UNSET
    slo: SloChange | msgspec.UnsetType | None = msgspec.UNSET
    aliases: tuple[str, ...] | msgspec.UnsetType | None = msgspec.UNSET
    fallback: str | msgspec.UnsetType | None = msgspec.UNSET
    on_request: tuple[str, ...] | msgspec.UnsetType | None = msgspec.UNSET
    default: bool | msgspec.UnsetType | None = msgspec.UNSET


class TenantChange(Body):
    """A merge patch (RFC 7396) of a tenant's settings: what it leaves out stays, and null takes a setting back to its
    default."""

    keys: tuple[str, ...] | msgspec.UnsetType | None = msgspec.UNSET
    cache_group: str | msgspec.UnsetType | None = msgspec.UNSET
    max_queued_requests: Count | msgspec.UnsetType | None = msgspec.UNSET
    max_buffered_body_bytes: Positive | msgspec.UnsetType | None = msgspec.UNSET
    trusted: bool | msgspec.UnsetType | None = msgspec.UNSET


class RateLimitsChange(Body):
    """A merge patch (RFC 7396) of the limits of a tenant or key: what it leaves out stays, and null removes a limit."""

    max_concurrent_requests: Count | msgspec.UnsetType | None = msgspec.UNSET
    requests_per_minute: Count | msgspec.UnsetType | None = msgspec.UNSET
    tokens_per_minute: Count | msgspec.UnsetType | None = msgspec.UNSET
    burst_requests: Positive | msgspec.UnsetType | None = msgspec.UNSET
    burst_tokens: Positive | msgspec.UnsetType | None = msgspec.UNSET


class NewModels(Body):
    """The settings of all models, by the names that workers serve them by."""

    models: dict[str, ModelConfig]


class Models(Shape):
    """The settings of models by name. Their fields are those of the setting `models`.

    `next` is the `cursor` of the following page, or null.
    """

    models: dict[str, ModelConfig]
    next: str | None = None


class NewTenants(Body):
    """All tenants by name."""

    tenants: dict[str, TenantConfig]


class Tenants(Shape):
    """Tenants by name. Their fields are those of the setting `tenants`.

    `next` is the `cursor` of the following page, or null.
    """

    tenants: dict[str, TenantConfig]
    next: str | None = None


class NewNamedLimits(Body):
    """The limits of all tenants, or of all keys, by name."""

    limits: dict[str, RateLimitsConfig]


class NamedLimits(Shape):
    """Limits of tenants or keys by name. Their fields are those of the setting `limits.tenants`.

    `next` is the `cursor` of the following page, or null.
    """

    limits: dict[str, RateLimitsConfig]
    next: str | None = None


class Routes(Shape):
    """The routes, in the order in which they are tried. Their fields are those of the setting `routes`."""

    routes: list[RouteConfig]


class ShadowPolicy(Shape):
    """One shadow policy compared with the policy that decided: means per request, null without a request.

    `agreement` is the share of equal choices. `predicted_*` are estimates for the worker that was chosen, `shadow_*`
    for the one that the shadow policy would have chosen, by the same estimators. `reported_*` came from the chosen
    worker; `predicted_for_reported_ttft_s` was predicted for the requests whose time to first token is known. `totals`
    are the sums.
    """

    name: str
    agreement: float | None
    predicted_ttft_s: float | None
    shadow_ttft_s: float | None
    predicted_cached_tokens: float | None
    shadow_cached_tokens: float | None
    reported_ttft_s: float | None
    predicted_for_reported_ttft_s: float | None
    reported_cached_tokens: float | None
    totals: ShadowTotals


class ShadowComparison(Shape):
    """What the shadow policies of a route would have chosen, over the last `window_s` seconds in whole minutes.

    `policies` decided. `share` of the requests were sampled, within the budget of 100 decisions per second and process.
    """

    route: str
    policies: list[str]
    window_s: int
    share: float
    shadows: list[ShadowPolicy]


class BucketDocument(Shape):
    """A token bucket. It gains `per_minute` up to `burst`, holds `remaining`, and is full after `full_s`.

    `remaining` is below 0 after a request that used more than its estimate.
    """

    per_minute: int
    burst: int
    remaining: float
    full_s: float


class AccountLimits(Shape):
    """A tenant or key with limits. `account` is tenant:NAME, key:NAME or anybody. null: no such limit.

    `running_requests` are its requests in progress in all processes, and of all gateways that share Redis. So is what
    is left.
    """

    account: str
    running_requests: int
    max_concurrent_requests: int | None = None
    requests: BucketDocument | None = None
    tokens: BucketDocument | None = None


class LimitsDocument(Shape):
    """All accounts with limits, by name."""

    accounts: list[AccountLimits]


class ReplicaDocument(Shape):
    """One gateway of the fleet. `silent_s` is the time since its last message; null if it has a lease only. Fields that
    its lease tells are null until that is read.
    """

    id: str
    name: str | None
    version: str | None
    processes: int | None
    started_at: float | None
    itself: bool
    silent_s: float | None


class ReplicasDocument(Shape):
    """The gateways of the fleet. `fleet` is null without Redis.

    `alone`: this gateway's own messages do not come back, so that it goes on with what it has; `problem` says why.
    `lag_s` is the time that the last own message took.
    """

    fleet: str | None
    alone: bool
    problem: str | None
    lag_s: float | None
    replicas: list[ReplicaDocument]

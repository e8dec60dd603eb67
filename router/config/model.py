"""Every setting, its type and default. Times are seconds and sizes bytes, unless the name says otherwise. A source may
write them with a unit (`router.config.units`).

The sample file in docs is generated from this module: the string under a field is its documentation.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Bytes = Positive | Literal["auto"]
"""Bytes of memory; auto: a share of the memory limit (`router.config.budgets`)."""
Port = Annotated[int, Meta(ge=0, le=65535)]
Secret = Annotated[str, Meta(pattern=r"^[!-~]+$(?!\n)")]
"""Text that is valid in a header value and is never shown. Python's ``$`` alone would accept a final line break."""
WorkerName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$(?!\n)")]
WorkerHost = Annotated[str, Meta(pattern=r"^([A-Za-z0-9_-][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?$(?!\n)")]
WorkerWeight = Annotated[float, Meta(ge=0.01, le=100)]
WorkerRole = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}$(?!\n)")]
WorkerOperationName = Literal["pause", "resume", "reset-prefix-cache", "load-lora", "unload-lora"]
STRUCK_OUT = "***"
"""Shown in place of a secret."""
SECRETS = frozenset(
    {
        "api_key",
        "api_keys",
        "admin_token",
        "admin_tokens",
        "isolation_secret",
        "password",
        "sentinel_password",
    }
)
"""Settings whose values are never shown."""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: immutable, and an unknown key is an error."""


class KvEventsConfig(Section, frozen=True):
    """Where a worker publishes KV events, if its ``/kv_event_sources`` does not list them."""

    endpoint: str
    """Publisher of rank 0, as in tcp://10.0.0.5:5557; other ranks use the next ports."""
    replay_endpoint: str | None = None
    """Replay socket of rank 0."""


class WorkerConfig(Section, frozen=True):
    """One vLLM endpoint."""

    url: str
    """Base URL, http://HOST:PORT or https://HOST:PORT."""
    name: WorkerName | None = None
    """Name for people, unique in the fleet. Listings, decisions and logs show it beside the id."""
    weight: WorkerWeight = 1.0
    """Share of the traffic in relation to other workers. A policy counts the worker's load divided by its weight: with
    0.5, each request that runs or waits there counts double. Workers that it finds equal take turns by weight, and
    rules that draw or hash draw by weight. Cached prefixes and the prompt's own prefill count as they are."""
    role: WorkerRole = "mixed"
    """What the worker is for. With `handover.connector`, a prefill worker only computes prompts, and a decode worker
    receives them and takes whole requests, too. Any other word is yours: it is shown, and changes no decision. A worker
    with such a word can do both if its label kv_connector names its connector."""
    kv_events: KvEventsConfig | None = None
    """KV event addresses. Default: the worker's /kv_event_sources lists them."""
    api_key: Secret | None = None
    """vLLM's --api-key. Probes and the self-test send it. Forwarded requests carry it if the public port has keys
    (`auth`). Otherwise they keep their client's Authorization."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels for the policy. marginal_cost reads the label `lane`: prefill keeps the worker in the prefill lane, and
    decode keeps it out. KV handovers read `kv_connector`, the worker's connector as in `handover.connector`, or none;
    `kv_format`, any text, which must be equal on both workers; and `kv_sidecar: llm-d`, for a worker whose URL is that
    of llm-d's sidecar."""
    maintenance: bool = False
    """Send the worker no new requests, as after a drain."""
    migrate_after_s: Annotated[float, Meta(ge=0)] | None = None
    """With `maintenance`: answers in progress move to other workers after this time, on routes with the layer
    `migration`. Default: the route's `drain_after_s`."""
    host: WorkerHost = "worker"
    """The Host of requests: `worker` (that of the URL), `client` (as the client sent it), or a name, which is then also
    the name in TLS. X-Forwarded-Host has the client's Host in all cases."""

    def __repr__(self) -> str:
        """Leave out the key: this text goes to logs."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if name != "api_key"}
        return f"WorkerConfig({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class DnsSourceConfig(Section, frozen=True):
    """Workers in DNS. Records are asked for again when their time to live is over."""

    name: str
    """The name to ask for: with `port` its addresses (A and AAAA), else its SRV records, of which those with the lowest
    priority number count."""
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    """Port of the workers at the addresses. Not set: SRV records name the ports."""
    scheme: Literal["http", "https"] = "http"
    """Scheme of the workers' URLs."""
    nameservers: tuple[str, ...] = ()
    """DNS servers to ask, each as ADDRESS or ADDRESS:PORT. Default: those of the system."""


class KubernetesSourceConfig(Section, frozen=True):
    """Workers in Kubernetes: exactly one of `service`, `pods` and `pool`. Labels and annotations that begin with
    warmroute.io/ give a worker's fields."""

    service: str | None = None
    """Name of a service: the ready endpoints of its EndpointSlices."""
    pods: str | None = None
    """Label selector, such as app=vllm: the pods that are ready."""
    pool: str | None = None
    """Name of an InferencePool: the ready pods that it selects, at its target ports."""
    namespace: str | None = None
    """Namespace. Default: that of the gateway's own pod."""
    port: Annotated[int, Meta(ge=1, le=65535)] | str | None = None
    """Number or name of the workers' port, not for `pool`. Default for a service: its only port, or the one named http;
    for pods: the one named http, else the first, else 8000."""
    api_url: str = "https://kubernetes.default.svc"
    """URL of the API server. The default gets the token of the service account, and its CA is verified. Any other URL,
    such as that of `kubectl proxy`, is asked without a token."""


class RedisSourceConfig(Section, frozen=True):
    """Workers that register themselves in the Redis of the section `redis`, as a sidecar does for its worker. It has no
    keys: the workers are those of redis.fleet."""


class DiscoverySourceConfig(Section, frozen=True):
    """One source of workers: exactly one of the kinds, and what its workers have in common."""

    file: str | None = None
    """A file that another program writes, in YAML or JSON: a list of workers, the file_sd format of Prometheus, or the
    endpoints file of llm-d's file-discovery; read again when it changes."""
    dns: DnsSourceConfig | None = None
    """A DNS name."""
    kubernetes: KubernetesSourceConfig | None = None
    """The API server of Kubernetes."""
    redis: RedisSourceConfig | None = None
    """Registrations in Redis: {}."""
    defaults: dict[str, str] = field(default_factory=dict)
    """Fields of workers that the source gives none: model, role, weight, kv-events-port, kv-replay-port, and label.NAME
    for the label NAME."""
    api_key: Secret | None = None
    """vLLM's --api-key of these workers."""


class DiscoveryConfig(Section, frozen=True):
    """Sources of workers beside `workers`. The settings' workers come before those of sources, and the admin API's
    changes before both."""

    sources: dict[str, DiscoverySourceConfig] = field(default_factory=dict)
    """Sources by name. If two name one worker, the first one counts."""
    drain_s: Seconds = 300.0
    """Longest drain of a worker that its source no longer names: no new requests, and removal once it has none."""
    registration_networks: tuple[str, ...] = ()
    """Networks such as 10.0.0.0/8 from which workers may register, at the admin API and in Redis. Their URLs and KV
    events must then name IP addresses in one of them. Empty: every address, and host names."""


class SloConfig(Section, frozen=True):
    """Service levels of a stream. Metrics count the streams that met those of a route or model. Those of a class order
    its requests and protect them from other classes."""

    ttft: Seconds | None = None
    """Longest time to first token."""
    tpot: Seconds | None = None
    """Longest mean time per output token after the first."""


class ModelConfig(Section, frozen=True):
    """One served model: local files to render and tokenise its prompts, and its further names."""

    dir: str | None = None
    """Folder with tokenizer.json and tokenizer_config.json."""
    chat_template: str | None = None
    """File with a Jinja chat template, like that of vllm serve --chat-template."""
    tokenizer: str | None = None
    """auto: the model's files on this machine, else those of the Hugging Face hub, else a worker's /tokenize. local:
    the same, and nothing is fetched. worker: a worker's /tokenize. Or the path of a tokenizer.json, or of a folder with
    one. Default: what the setting tokenizer says."""
    slo: SloConfig = field(default_factory=SloConfig)
    """Service levels of the model's requests, where their route has none."""
    aliases: tuple[str, ...] = ()
    """Further names of the model. The gateway puts the model's own name into a request that uses one."""
    fallback: str | None = None
    """The model that serves in place of this one while none of its workers is ready, or all have reached their limits.
    The response names the model that served."""
    on_request: tuple[str, ...] = ()
    """Names that this model's workers resolve when a request uses them, such as adapters of a resolver plug-in; a name
    may end in `*`. Their requests go to these workers, whether or not one lists the name."""
    default: bool = False
    """Whether requests without a model go to this one. Without a default, a fleet of several models refuses them."""


class PolicyConfig(Section, frozen=True):
    """The rule that chooses a worker."""

    rule: str = "marginal_cost"
    """The rule that chooses a worker; docs/reference/policies.md lists all."""
    params: dict[str, Any] = field(default_factory=dict)
    """Parameters of the rule."""
    hold: bool | dict[str, Any] | None = None
    """Whether long prompts wait in the gateway for prefills to end and for space in a KV cache: true, false, or true
    with the parameters prefills, kv_space and max_s. Default: on for marginal_cost, off for other rules."""
    lanes: bool | dict[str, Any] | None = None
    """Whether workers are kept for long prefills while that saves delay: true, false, or true with the parameter
    stream_weight. Default: on for marginal_cost, off for other rules."""
    seed: int = 0
    """Seed of the rule's random numbers."""


class ClassConfig(Section, frozen=True):
    """How the requests of a class are treated while the workers are busy. Classes are listed in the order in which they
    go first."""

    share: Annotated[float, Meta(ge=0)] = 1.0
    """Weight of the class against other classes that wait. 0: it runs only on what the others leave."""
    floor: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Part of each worker that other classes leave free: of the prefill work that may wait there, and of its KV
    cache."""
    slo: SloConfig = field(default_factory=SloConfig)
    """ttft: when a first token is due; of two requests of a tenant the one that is due earlier goes first. tpot: other
    classes, and tenants of this one that run more than their part, do not go to a worker where they would make the
    time per output token longer than this."""
    max_wait_s: Seconds | None = None
    """Longest time to first token. A request that would have to wait longer is refused at once with 429. Default: no
    request is refused for its wait."""
    starvation_s: Seconds = 120.0
    """Wait after which a class with share 0 gets a small share."""
    engine_priority: int | None = None
    """Priority that workers get in the body, for their own queues: a lower number is sooner. It needs vLLM's
    --scheduling-policy priority. Default: none is sent."""
    preemptible: bool = False
    """Whether an answer that has begun gives way, too: it ends with an error, or goes on at another worker if its route
    has migration. Requests whose answer has not begun go back to the queue for those of an earlier class in any
    case."""
    service_tiers: tuple[str, ...] = ()
    """Values of service_tier in a body that name this class, such as flex or priority, as far as the caller may name
    it. The worker gets the field as it came."""


class RouteMatch(Section, frozen=True):
    """Conditions on a request; all of them must hold. Names match exactly, or by their start if they end in `*`."""

    model: str | None = None
    """The model."""
    path: str | None = None
    """The path, such as /v1/chat/completions or /v1/*."""
    header: dict[str, str] = field(default_factory=dict)
    """Request headers by name, in any case; "*" is any value."""
    api_key: str | None = None
    """Name of the API key."""
    tenant: str | None = None
    """Name of the tenant."""
    prompt_tokens: str | None = None
    """Length of the prompt: ">32000", "<=1000" or "1000-8000". The count is exact if the gateway tokenises the model's
    prompts, else it is the size of the body in bytes, divided by 4. Decisions say which."""
    stream: bool | None = None
    """Whether the answer is streamed."""
    priority: str | None = None
    """The priority, compared like prompt_tokens. It is 0 for callers that may not set one."""


class RouteConfig(Section, frozen=True):
    """Which policy decides for which requests. The first route that matches wins; the last one takes all others."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    """Name of the route, in metrics, logs and decisions."""
    match: RouteMatch = field(default_factory=RouteMatch)
    """Conditions; none match every request."""
    policy: str | None = None
    """The policy that decides: a name in `policies`, or default for the one in `policy`, which is also the default."""
    split: dict[str, Positive] = field(default_factory=dict)
    """Policies by weight, in place of `policy`: {chat: 90, batch: 10} gives a tenth of the sessions to batch."""
    max_requests: Count = 0
    """Requests of the route on workers at once, over all processes. A further request waits. 0: no
    limit. Each process has its share, and at least 1: with more processes than this, it is their number."""
    max_queued_requests: Count | None = None
    """Requests of the route that may wait for a worker at once, over all processes. Default: only
    limits.max_queued_requests applies."""
    queue_s: Annotated[float, Meta(ge=0)] | None = None
    """Longest wait for a worker. 0: no request waits. Default: timeouts.queue_s."""
    slo: SloConfig = field(default_factory=SloConfig)
    """Service levels."""
    shadow: tuple[str, ...] = ()
    """Policies, or rules with default parameters, that decide beside the route's own and are never obeyed.
    GET /admin/v1/routes/{name}/shadow compares them. They see up to 100 requests per second and process."""
    request_class: str | None = None
    """The class of the route's requests, one of `classes`. Default: that of the tenant."""
    layers: dict[str, Any] = field(default_factory=dict)
    """Further features for the route's requests, by name, each with its own settings."""


class RateLimitsConfig(Section, frozen=True):
    """What one tenant or one key may use. A request beyond a limit gets 429 with Retry-After."""

    max_concurrent_requests: Count = 0
    """Requests in progress at once. 0: no limit."""
    requests_per_minute: Count = 0
    """Requests per minute, as a token bucket: it fills at this rate. 0: no limit."""
    tokens_per_minute: Count = 0
    """Prompt and output tokens per minute, as a token bucket. A request is charged by an estimate when it starts, and
    by its usage when it ends; its streams are asked for usage. 0: no limit."""
    burst_requests: Positive | None = None
    """Requests that the bucket holds. Default: those of one minute."""
    burst_tokens: Positive | None = None
    """Tokens that the bucket holds. A request whose estimate is larger is always refused. Default: those of one
    minute."""


class LimitsConfig(Section, frozen=True):
    """Bounds on what one client, and all clients together, may use."""

    max_connections: Positive = 8_192
    """Open client connections, with TLS handshakes. A further connection replaces the one that has been idle for
    longest. If none is idle, the gateway closes the new one. RLIMIT_NOFILE may lower this limit at start."""
    max_header_bytes: Positive = 65_536
    """Bytes of one request line with its headers. A longer one gets 431."""
    max_body_bytes: Positive = 67_108_864
    """Bytes of one request body. A larger one gets 413."""
    max_buffered_body_bytes: Bytes = "auto"
    """Bytes of all request bodies in memory. A body stays there until a worker begins to answer, and what migration
    keeps of it until the answer ends. A request beyond the limit gets 503. A single body larger than the limit gets
    413, even if max_body_bytes allows it. auto: a share of the memory limit, at most 1 GiB. With several processes, no
    body may then be larger than one process's share."""
    max_queued_requests: Count = 1_000
    """Requests in the queue at once, because no worker is ready for them. A further request gets 503. The policy may
    hold as many beside them; a further one goes to a worker without delay."""
    max_concurrent_requests: Count = 0
    """Requests in progress at once in all processes, with queued and held requests. A further request gets 503 with
    Retry-After. 0: no limit."""
    max_requests_per_worker: Count = 0
    """Requests at once on one worker, or on one data-parallel rank. If every worker has reached the limit, a request
    gets 503 with Retry-After; if its model has a fallback, it waits in the queue and then goes there. 0: no limit."""
    max_buffered_response_bytes: Bytes = "auto"
    """Unsent response bytes of all slow clients. Above half of the limit, a stream pauses as soon as it has unsent
    bytes. Above the limit, the gateway cuts off the client that has read nothing for longest. auto: a share of the
    memory limit, at most 256 MiB."""
    tenants: dict[str, RateLimitsConfig] = field(default_factory=dict)
    """Limits of each tenant, by its name in `tenants`. The name default stands for every tenant without an entry here,
    and for every key without a tenant; each has buckets of its own."""
    keys: dict[str, RateLimitsConfig] = field(default_factory=dict)
    """Limits of single API keys, by their name. A key of a tenant must also keep to the limits of the tenant."""
    alone: Literal["whole", "share"] = "whole"
    """What a gateway with redis.url admits of each tenant's and key's limits while Redis is away. whole: the limit, so
    that N gateways may together admit N times as much. share: the limit divided by the number of gateways that it last
    heard, so that a caller who uses few of them gets less."""


class TimeoutsConfig(Section, frozen=True):
    """How long each step of a request may take."""

    connect_s: Seconds = 2.0
    """TCP connect to a worker."""
    first_event_s: Seconds = 600.0
    """Streams: from the sent request to the first real event of the response. An answer in one piece has no early byte;
    total_s alone limits it."""
    stream_idle_s: Seconds = 120.0
    """Time between two reads of a started response. A quiet stream goes on while its worker generates tokens, up to 20
    times as long. A response is also stalled if it brings no event and fewer than 16 bytes per second for this time."""
    total_s: Seconds = 3600.0
    """Whole request, from its last byte received to the last byte of the response sent."""
    client_header_s: Seconds = 20.0
    """From the first byte of a request to the end of its headers (408). On the admin port, the time of the first
    request begins with the connection."""
    client_body_s: Seconds = 120.0
    """From the end of the headers to the end of the body (408)."""
    client_idle_s: Seconds = 75.0
    """How long a keep-alive connection of a client may be idle."""
    upstream_idle_s: Seconds = 4.0
    """How long a connection to a worker may be idle. vLLM closes its side after 5 s."""
    queue_s: Annotated[float, Meta(ge=0)] = 10.0
    """How long a request stays in the queue while no worker is ready for its model."""
    header_delay_s: Seconds = 15.0
    """Streams only: how long the response headers may wait for the first event. SSE comments follow the headers."""
    comment_interval_s: Seconds = 15.0
    """Time between keep-alive comments on a stream that brings nothing, before its first event and after it. They
    stand between events."""
    drain_delay_s: Annotated[float, Meta(ge=0)] = 0.0
    """How long the gateway still accepts connections after SIGTERM. /readyz fails at once, and a load balancer needs
    time to see it."""
    drain_s: Annotated[float, Meta(ge=0)] = 30.0
    """How long requests in progress may take to end after drain_delay_s."""
    drain_idle_s: Annotated[float, Meta(ge=0)] = 5.0
    """How long a keep-alive connection may be idle in all once the gateway accepts no more. The end of drain_s closes
    it in any case. A request before that is answered with Connection: close."""
    takeover_ready_s: Seconds = 15.0
    """How long a process waits for its workers' first probes before it takes over."""


class HealthConfig(Section, frozen=True):
    """When a worker counts as healthy, by probes and by its traffic."""

    probe_interval_s: Seconds = 1.0
    """Time between two probes of one worker, and between two reads of its /metrics."""
    probe_timeout_s: Seconds = 2.0
    """Timeout of one probe."""
    failure_threshold: Positive = 3
    """Consecutive failures that eject a worker. A probe that times out counts only if the worker makes no progress."""


class RetriesConfig(Section, frozen=True):
    """Retries on another worker, for a request that failed before its response began."""

    max_attempts: Positive = 3
    """Workers tried for one request. Once two workers have failed with the request, there is no further retry."""
    budget_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.2
    """Retry budget, as a share of the requests of the last half minute. A failed connect does not count, because no
    worker did any work. 3 retries a second are allowed beside it, so that a gateway with few requests can retry. 0: no
    retries."""
    query_of_death_s: Annotated[float, Meta(ge=0)] = 600.0
    """How long the gateway refuses a query of death (422, `request_crashes_workers`). A body becomes one when two
    workers die before they begin to answer it, each with at most four different unanswered requests. The gateway keeps
    a digest of the body. Any answer to the same body clears it. 0: refuse none; the body may then crash worker after
    worker."""


class ResidencyConfig(Section, frozen=True):
    """How the gateway knows the workers' caches."""

    kv_events: bool = True
    """Subscribe to a worker's KV events if it publishes them."""
    self_test: bool = True
    """Send one short prompt twice to each new worker, to check whether the view of its cache is exact. The gateway
    repeats the test if the result is not clear."""
    memo_bytes: Bytes = "auto"
    """Memory for tokenised prefixes; texts of running requests take up to 8 MiB more. auto: a share of the memory
    limit, at most 128 MiB."""
    approximate_bytes: Bytes = "auto"
    """Memory for the approximate caches of all workers. auto: a share of the memory limit, at most 128 MiB."""
    relearn: Literal["passive", "piggyback"] = "passive"
    """How a view relearns blocks of lost events that a replay cannot fill. passive: from later events and responses.
    piggyback: requests with an unknown cached prefix also carry vllm_xargs.kv_cache_report_mode "full", and vLLM 0.26
    and later announces the blocks again."""


class HandoverConfig(Section, frozen=True):
    """KV handover: a worker of the role prefill computes a prompt, and a worker of the role decode writes the answer,
    where that costs less time than one worker for both. A mixed worker with the label kv_connector can be either.
    Pulls: a worker takes the start of a prompt from another one that has it, where that costs less time than to
    compute it."""

    connector: (
        Literal["nixl_pull", "nixl_push", "mooncake", "moriio_pull", "shared_store", "lmcache", "offloading_peer"]
        | None
    ) = None
    """The workers' KV connector. nixl_pull: vLLM's NixlConnector. nixl_push: NixlPushConnector. mooncake:
    MooncakeConnector. With these two, both workers get their requests at once. moriio_pull: MoRIIOConnector in its read
    mode.
    shared_store: one that keeps blocks where all workers find them, such as a file system. lmcache: LMCache's server.
    offloading_peer: OffloadingConnector with a secondary tier of the type p2p; both workers get their requests at once,
    and the label kv_peer is as for `pulls`. Not set: no KV handover, and a role changes no decision."""
    pulls: Literal["offloading_peer"] | None = None
    """How workers pull: offloading_peer is vLLM's OffloadingConnector with a secondary tier of the type p2p, on every
    worker. Not set: no pulls. A worker's label kv_peer is the port, or HOST:PORT, of its side channel; without it, that
    is the host of its URL and 5710."""
    lease_s: Seconds = 30.0
    """How long a prefill worker keeps a prompt's blocks: vLLM's kv_lease_duration. With nixl_pull, a decode worker that
    reads them later gets wrong content without an error."""
    transfer_tokens_per_s: Annotated[float, Meta(ge=1)] = 100_000.0
    """Prompt tokens that move from one worker to another per second: bandwidth divided by the KV cache's bytes per
    token. The decision starts from it, and learns the speed of each link."""
    latency_s: Annotated[float, Meta(ge=0)] = 0.01
    """What a KV handover takes beside prefill and transfer. The decision starts from it, too."""

    @property
    def lease_margin_s(self) -> float:
        """Blocks that are closer than this to the end of their lease are not used."""
        return self.lease_s / 6.0


class HeadersConfig(Section, frozen=True):
    """Response headers that the gateway adds."""

    worker: bool = False
    """x-warmroute-worker: the worker that answered."""
    predicted_cached_tokens: bool = False
    """x-warmroute-predicted-cached-tokens: the predicted cached tokens. x-warmroute-residency: how far this prediction
    can be trusted (exact, approximate, unknown, off)."""
    receipt: Literal["off", "trusted", "all"] = "off"
    """x-warmroute-receipt in the response to a request with the header x-warmroute-receipt: 1. It says where the
    request went and why. trusted: for trusted tenants. all: for every caller, without ids of workers for those who are
    not trusted."""


class DecisionLogConfig(Section, frozen=True):
    """A log of what policies see and choose, for `warmroute replay`. It has hashes of prompts, and no text."""

    path: str | None = None
    """The file, such as /var/log/decisions.jsonl. One that ends in .gz is compressed, which costs more CPU time. Older
    files get the endings .1, .2 and so on. With several processes, each has a file with its number. Not set: no log."""
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Share of the time that is recorded, in whole minutes, because a replay needs every decision of a period."""


class DiagnosisConfig(Section, frozen=True):
    """Thresholds of the diagnosis, which `GET /admin/v1/diagnosis` and `warmroute diagnose` show. It looks back over
    ten minutes."""

    ttft_s: Seconds = 2.0
    """Time to first token that 95 % of the requests of each prompt length should meet."""
    gap_s: Seconds = 0.1
    """Gap between two tokens that 95 % of a worker's gaps should meet while no long prompt is prefilled."""


class TracingConfig(Section, frozen=True):
    """Traces of requests for OpenTelemetry, sent as OTLP over HTTP in JSON. OpenTelemetry's variables (OTEL_*) are
    defaults of this section."""

    endpoint: str | None = None
    """URL of the receiver, such as http://collector:4318/v1/traces; SSL_CERT_FILE names a CA of its own. Not set:
    no traces."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers for the receiver, such as a key."""
    share: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """Share of the requests that are traced. A request with a traceparent follows its caller's choice. Server errors
    and requests of more than 10 s are always traced."""
    resource: dict[str, str] = field(default_factory=dict)
    """Attributes of the resource, such as service.name (default: warmroute) and deployment.environment.name."""


class AuthConfig(Section, frozen=True):
    """Who may use the public port. Without keys, everyone may."""

    api_keys: tuple[str, ...] = ()
    """Hashed keys, each as NAME sha256:HEX; `warmroute keys new NAME` makes one."""
    api_keys_file: str | None = None
    """File with more keys, one per line; read again when it changes. If the changed file is not valid, the old keys
    stay. An empty file admits nobody."""
    isolate_cache: Literal["off", "key", "group"] | None = None
    """Which requests share cached prefixes on the workers. off: all requests. key: requests with API keys of the same
    name. group: requests of tenants with the same cache_group. The gateway sets cache_salt in the body. Default: key if
    the port has keys, else off."""
    isolation_secret: Secret | None = None
    """Secret for the salts of isolate_cache, the same for every gateway of a fleet. Needed only if other clients can
    send requests to the workers directly."""
    allow: tuple[Literal["transfer_params", "priority", "rank"], ...] = ()
    """Parameters that every caller may send, like a trusted tenant. transfer_params: kv_transfer_params with members
    other than prompt_token_ids, ec_transfer_params, and the header x-prefiller-host-port. priority: priority in the
    body, x-vllm-priority, and objectives (picker.objectives). rank: X-data-parallel-rank. A request of another caller
    gets 400 for these members, and the gateway removes these headers from it."""


class TenantConfig(Section, frozen=True):
    """API keys that share quotas and cached prefixes."""

    keys: tuple[str, ...] = ()
    """Names of the tenant's API keys, as in auth.api_keys. A key belongs to at most one tenant."""
    cache_group: str | None = None
    """Tenants of the same group share cached prefixes if auth.isolate_cache is group. Default: a group of this tenant
    alone."""
    max_queued_requests: Count | None = None
    """The tenant's requests in the queue or held at once. A further request gets 503 if no worker is ready. If the
    policy would hold it, it goes to a worker without delay. Default: only the counts in limits apply."""
    max_buffered_body_bytes: Positive | None = None
    """Bytes of all request bodies of the tenant in memory. A request beyond the limit gets 503, and a single larger
    body gets 413. Default: only limits.max_buffered_body_bytes applies."""
    classes: tuple[str, ...] = ()
    """Classes that the tenant's requests may name in X-Request-Class; the first one is their class if they name none.
    Default: the class called default, or the first one."""
    weight: Annotated[float, Meta(gt=0)] = 1.0
    """The tenant's part of its class, against other tenants that wait."""
    trusted: bool = False
    """The tenant may send every parameter of auth.allow."""


class TlsConfig(Section, frozen=True):
    """TLS on a port; off if `cert_file` is not set. The files are read again when they change."""

    cert_file: str | None = None
    """PEM file with the certificate, then the intermediate certificates."""
    key_file: str | None = None
    """PEM file with the private key, without a pass phrase; not needed if cert_file has it."""
    client_ca_file: str | None = None
    """PEM file with the CAs of client certificates. If set, every client must present a certificate."""


class WorkerTlsConfig(Section, frozen=True):
    """TLS to workers with an https:// URL, for requests, probes and /tokenize. KV events are not encrypted."""

    ca_file: str | None = None
    """PEM file with the CAs to trust. Default: the system's CAs."""
    verify: bool = True
    """Verify the workers' certificates and names. Without it, anyone on the network path can read and change
    traffic."""
    cert_file: str | None = None
    """PEM file with a client certificate for the workers."""
    key_file: str | None = None
    """PEM file with its private key; not needed if cert_file has it."""
    server_name: str | None = None
    """Name that every worker's certificate must have, in place of the host in its URL."""


class RedisConfig(Section, frozen=True):
    """Redis, through which the gateways of a fleet share their state and workers register themselves."""

    url: str | None = None
    """redis://HOST:PORT[/DATABASE], redis+sentinel://HOST:PORT,HOST:PORT/SERVICE[/DATABASE] or
    redis+cluster://HOST:PORT,HOST:PORT; rediss in place of redis for TLS. Not set: this gateway is on its own."""
    username: str | None = None
    """User of Redis' access control list. Default: Redis' own user, default."""
    password: Secret | None = None
    """Password of the user."""
    sentinel_password: Secret | None = None
    """Password of the sentinels, if they ask for one."""
    ca: str | None = None
    """PEM file with the CAs to trust. Default: the system's CAs."""
    fleet: str = "default"
    """Name of the fleet. Gateways with the same fleet share their state."""


class SidecarConfig(Section, frozen=True):
    """What `warmroute sidecar` does beside its worker. Other commands ignore this section."""

    drain_port: Port = 8002
    """Port of POST /drain, on 127.0.0.1. 0: chosen by the system."""
    hung_after_s: Annotated[float, Meta(ge=0)] = 30.0
    """How long a test request of one token may wait while the engine makes no progress. The worker is then not ready
    until its engine moves again. 0: no test."""
    gateways: tuple[str, ...] = ()
    """Base URLs of gateways' admin ports, http://HOST:PORT, at which the sidecar registers its worker; of
    https:// ones the system's CAs are trusted, and SSL_CERT_FILE names others. With redis.url
    it also registers there."""
    gateway_token_file: str | None = None
    """File with the admin token of these gateways, with the role register; read again at each call."""
    advertise_url: str | None = None
    """URL at which gateways reach the sidecar. Default: its own address on the way to the registry, and its public
    port."""

    @property
    def test_interval_s(self) -> float:
        """Time without progress of the engine after which it gets a test request."""
        return self.hung_after_s / 3.0


class PickerPoolConfig(Section, frozen=True):
    """One pool of a picker with several."""

    port: Port
    """Port at which gateways ask for a worker of the pool."""
    workers: dict[str, str]
    """Labels of the pool's workers, as in `workers[].labels`; a worker has to have all of them. A source gives its
    workers a label with `defaults`: {label.pool: chat}."""


class PickerRewriteConfig(Section, frozen=True):
    """Models in place of those that clients name, as in GAIE's InferenceModelRewrite."""

    targets: dict[str, Positive]
    """Models by weight: {llama-3: 90, llama-4: 10} sends a tenth of the sessions to llama-4."""
    models: tuple[str, ...] = ()
    """Names that clients send. Empty: every name that no other rule has, and requests without one."""


class PickerConfig(Section, frozen=True):
    """How `warmroute picker` answers gateways. Its port is `port`, 9002 by default. Other commands ignore this
    section."""

    pick_s: Seconds = 2.0
    """Longest time from the end of a request to its pick, with tokenising and queues. What is known by then decides: a
    prompt that is not identified yet goes by load alone, a request without a worker gets 503."""
    learn: Literal["none", "headers", "all"] = "none"
    """What the picker stays for after a pick. none: it ends its stream, and releases the request's load by prediction
    and the worker's own reports. headers: it sees status and end of the answer, and who served it. all: it also reads
    the body for first token and usage, if the gateway sends it."""
    endpoints: Annotated[int, Meta(ge=1, le=16)] = 1
    """Endpoints in one pick, best first, as a comma list. Above 1, the gateway must read lists; those with an
    ORIGINAL_DST cluster and agentgateway do not."""
    scores: bool = False
    """Whether a pick also says how the policy ranked the endpoints, in the metadata
    x-gateway-destination-endpoint-scores: from 1 for the best to 0 for the worst."""
    rank_header: Literal["rank", "host_port"] = "rank"
    """How a worker with data-parallel ranks learns the rank. rank: X-data-parallel-rank, for vLLM's own balancer.
    host_port: x-data-parallel-host-port, the address of the rank's server, for llm-d's sidecar; rank n listens at the
    worker's port plus n."""
    secure: bool = True
    """TLS, with the files in `tls`, or else a certificate that the picker signs itself at each start."""
    health_port: Port | None = None
    """A further port without TLS, for health checks only."""
    max_streams: Positive = 10_000
    """Streams at once, over all connections of a port. A further one is refused."""
    pools: dict[str, PickerPoolConfig] = field(default_factory=dict)
    """Several pools by name, each with a port and workers of its own, in place of `port`. The rest of the settings, the
    admin port and the limits are those of all. Gateways do not say in a stream which pool they ask for."""
    objectives: dict[str, int] = field(default_factory=dict)
    """Priorities by the names that callers with the permission `priority` send in x-llm-d-inference-objective. A
    request with a negative one gets 429 while every worker is saturated. Those of a pool's InferenceObjectives count,
    too."""
    saturated_queued_requests: Count = 5
    """A worker with more requests in its own queue is saturated. 5 is GAIE's default."""
    saturated_kv_usage: Annotated[float, Meta(gt=0, le=1)] = 0.8
    """A worker that uses more of its KV cache is saturated. 0.8 is GAIE's default."""
    rewrites: tuple[PickerRewriteConfig, ...] = ()
    """Rules that put another model into a request. The first rule with its name counts, before a rule for all names.
    Those of a pool's InferenceModelRewrites come after them."""


class Config(Section, frozen=True):
    """All settings of `warmroute serve`, `warmroute sidecar` and `warmroute picker`."""

    host: str = "0.0.0.0"
    """Address or host name of the public port. "::" is every IPv6 and IPv4 address, "0.0.0.0" every IPv4 address."""
    port: Port = 8000
    """Public port."""
    uds: str | None = None
    """Unix socket of the public side, instead of host and port."""
    takeover: str | None = None
    """Unix socket of the handover: a new process takes the listening sockets of the running one, which then drains."""
    admin_host: str = "127.0.0.1"
    """Address of the admin port."""
    admin_port: Port = 8001
    """Admin port: REST API, health and metrics."""
    admin_token: Secret | None = None
    """Token that callers of the admin port must send as Authorization: Bearer, or the token's sha256:HEX. /livez and
    /readyz need no token. Not set: everyone who reaches the port may use it."""
    admin_token_file: str | None = None
    """File with the token or its sha256:HEX; read again when it changes."""
    admin_tokens: tuple[str, ...] = ()
    """Hashed tokens with a role, each as NAME ROLE sha256:HEX; `warmroute keys new NAME --role ROLE` makes one. Roles:
    read sees everything, operate also drains and pauses workers and changes the log level, register registers workers
    and nothing else, admin makes every change."""
    admin_tokens_file: str | None = None
    """File with more of these, one per line; read again when it changes. If the changed file is not valid, the old
    tokens stay."""
    admin_metrics_open: bool = False
    """Serve /metrics without a token."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    """TLS on the public port."""
    admin_tls: TlsConfig = field(default_factory=TlsConfig)
    """TLS on the admin port."""
    auth: AuthConfig = field(default_factory=AuthConfig)
    """API keys of the public port."""
    tenants: dict[str, TenantConfig] = field(default_factory=dict)
    """Tenants by name. A key without a tenant has no quota."""
    processes: Positive | Literal["auto"] = 1
    """Processes that share the public port, each on its own core. auto: one per core. `limits` and `tenants` apply to
    all processes together, memory in `residency` to each process."""
    state_dir: str | None = None
    """Folder in which changes of the admin API are kept, with their history. Not set: they end with the process. Each
    gateway needs its own folder."""
    watch: bool = False
    """Reload the settings when their file changes, as SIGHUP and POST /admin/v1/reload do. A file with a mistake
    changes nothing."""
    workers: tuple[WorkerConfig, ...] = ()
    """The workers. The admin API can add more."""
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig)
    """Sources that name further workers."""
    worker_tls: WorkerTlsConfig = field(default_factory=WorkerTlsConfig)
    """TLS to workers."""
    model_dir: str | None = None
    """Folder with tokenizer.json and tokenizer_config.json, for every model that is not in `models`."""
    tokenizer: str | None = None
    """How prompts become token ids, for every model that names no other way: auto (the default), local or worker, as in
    models. Or a tokenizer.json, or a folder with one, if it is not in model_dir."""
    models: dict[str, ModelConfig] = field(default_factory=dict)
    """Local files, aliases and fallbacks, by served model name."""
    trust_request_chat_template: bool = False
    """Run chat templates that requests bring, like vllm serve --trust-request-chat-template. A template is a program
    that may run for long. Without it, the gateway places these requests by their text."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """The policy that chooses a worker, unless a route names another one."""
    policies: dict[str, PolicyConfig] = field(default_factory=dict)
    """Further policies by name, for `routes`. Each is an object of its own."""
    routes: tuple[RouteConfig, ...] = ()
    """Which policy decides for which requests. Default: `policy` decides for all."""
    classes: dict[str, ClassConfig] = field(default_factory=dict)
    """Classes of requests: who goes first, who waits and who is refused while the workers are busy, with turns between
    tenants. Requests then wait in the gateway and not in the workers. Default: none, and no order."""
    admission: Literal["enforce", "shadow"] = "enforce"
    """shadow: requests are sent as without classes, and warmroute_class_shadow_requests_total counts what classes would
    have done with them."""
    redis: RedisConfig = field(default_factory=RedisConfig)
    """What the gateways of a fleet share. Needs pip install 'warmroute[redis]'."""
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    """Sizes and counts."""
    timeouts: TimeoutsConfig = field(default_factory=TimeoutsConfig)
    """Durations."""
    health: HealthConfig = field(default_factory=HealthConfig)
    """When a worker is ready."""
    retries: RetriesConfig = field(default_factory=RetriesConfig)
    """Retries on another worker."""
    handover: HandoverConfig = field(default_factory=HandoverConfig)
    """Prefill and decode on different workers."""
    residency: ResidencyConfig = field(default_factory=ResidencyConfig)
    """How the gateway knows the workers' caches."""
    observe_usage: Annotated[float, Meta(ge=0, le=1)] = 0.05
    """Share of the streams without usage that are asked for it, and the first 32 of each worker: the gateway sets
    stream_options.include_usage, and removes the usage frame from the response. It learns cached tokens and lengths of
    answers from them. 0: bodies are forwarded unchanged, and a stream reports usage only if its client asks for it.
    Streams of callers with a token limit are asked in any case."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may send requests from a browser, or "*"; with every header that a preflight asks for."""
    headers: HeadersConfig = field(default_factory=HeadersConfig)
    """Response headers."""
    tracing: TracingConfig = field(default_factory=TracingConfig)
    """Traces for OpenTelemetry."""
    extra_paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Paths to forward in addition to vLLM's, each with its methods. A path that ends in /* is a prefix."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks (CIDR) whose X-Forwarded-For is trusted."""
    access_log: bool = False
    """One log line per request: client, status, model, route, policy, worker, attempts, tokens and times. If the
    client left before the end, the status is 499, and left_in and events say how far its answer came."""
    decisions_kept: Count = 1_000
    """Decisions kept for GET /admin/v1/decisions and for a what-if, with up to 85 MB of candidates in each process: all
    candidates of 1,000 decisions among 512 workers, or of 10,000 among 12."""
    decision_log: DecisionLogConfig = field(default_factory=DecisionLogConfig)
    """A log of decisions that can be replayed."""
    diagnosis: DiagnosisConfig = field(default_factory=DiagnosisConfig)
    """Thresholds of the diagnosis."""
    sidecar: SidecarConfig = field(default_factory=SidecarConfig)
    """`warmroute sidecar` only."""
    picker: PickerConfig = field(default_factory=PickerConfig)
    """`warmroute picker` only."""
    worker_operations: tuple[WorkerOperationName, ...] = ("reset-prefix-cache",)
    """Operations on workers that the admin API passes on, of pause, resume, reset-prefix-cache, load-lora and
    unload-lora. A cache reset costs time alone. The others stop a worker, or load files of its host, so they are not
    allowed by default. vLLM offers them only with VLLM_SERVER_DEV_MODE=1 or VLLM_ALLOW_RUNTIME_LORA_UPDATING=True."""
    admin_hosts: tuple[str, ...] = ()
    """Host names that the admin port accepts, in addition to loopback names and admin_host."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    log_format: Literal["auto", "text", "json"] = "auto"
    """text: one line per event. json: one JSON object per event. auto: text with colours on a terminal, else json."""


def to_builtins(config: Config) -> dict[str, Any]:
    """Return `config` as plain values for display, without secrets; hashed keys keep their names."""
    built: dict[str, Any] = without_secrets(msgspec.to_builtins(config))
    built["tracing"]["headers"] = dict.fromkeys(built["tracing"]["headers"], STRUCK_OUT)
    built["admin_tokens"] = [" ".join((*line.split()[:2], f"sha256:{STRUCK_OUT}")) for line in config.admin_tokens]
    built["auth"]["api_keys"] = [f"{line.split()[0]} sha256:{STRUCK_OUT}" for line in config.auth.api_keys]
    return built


def without_secrets(value: Any) -> Any:
    """Return nested plain values with every secret struck out that is set."""
    if isinstance(value, dict):
        return {
            key: STRUCK_OUT if key in SECRETS and item is not None else without_secrets(item)
            for key, item in value.items()
        }
    return [without_secrets(item) for item in value] if isinstance(value, list | tuple) else value

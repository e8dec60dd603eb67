"""Every setting, its type and default. Times are seconds, sizes bytes unless the name says otherwise.

The docs' sample file is generated from this module: the string under a field is its description.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Bytes = Positive | Literal["auto"]
"""Bytes of memory; auto: a part of the memory limit (`router.config.budgets`)."""
Port = Annotated[int, Meta(ge=0, le=65535)]
Secret = Annotated[str, Meta(pattern=r"^[!-~]+$(?!\n)")]
"""Text fit for a header's value, and never shown. Python's ``$`` alone would let a line break through at the end."""
STRUCK_OUT = "***"
"""What is shown instead."""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: immutable, unknown keys refused."""


class KvEventsConfig(Section, frozen=True):
    """Where a worker publishes KV events, when ``/kv_event_sources`` cannot say."""

    endpoint: str
    """Publisher of rank 0, as in tcp://10.0.0.5:5557; further ranks use the next ports."""
    replay_endpoint: str | None = None
    """Replay socket of rank 0."""
    topic: str = ""
    """Topic prefix to subscribe to; empty takes all."""


class WorkerConfig(Section, frozen=True):
    """One vLLM endpoint."""

    url: str
    """Base URL, http://HOST:PORT or https://HOST:PORT."""
    kv_events: KvEventsConfig | None = None
    """KV event addresses; default: learned from the worker's /kv_event_sources."""
    api_key: Secret | None = None
    """The key that vLLM got as --api-key, for probes and the self-test. Forwarded requests carry it while the public
    port has keys of its own (`auth`) or auth.inject_worker_key is set; otherwise what their client sent."""
    labels: dict[str, str] = field(default_factory=dict)
    """What a policy may go by. marginal_cost reads `lane`: prefill keeps the worker in the lane of long prefills,
    decode out of it."""

    def __repr__(self) -> str:
        """Without the key: this ends up in logs."""
        return f"WorkerConfig(url={self.url!r}, kv_events={self.kv_events!r}, labels={self.labels!r})"


class ModelConfig(Section, frozen=True):
    """Local files for one served model's prompts."""

    dir: str | None = None
    """Folder with tokenizer.json and tokenizer_config.json."""
    chat_template: str | None = None
    """File with a Jinja chat template, as vllm serve --chat-template."""


class PolicyConfig(Section, frozen=True):
    """The rule that chooses a worker."""

    name: str = "marginal_cost"
    """The rule that chooses a worker; docs/reference/policies.md lists all."""
    params: dict[str, Any] = field(default_factory=dict)
    """The policy's own parameters."""
    seed: int = 0
    """Seed of the policy's random source."""


class LimitsConfig(Section, frozen=True):
    """What one client, or all together, may take."""

    max_connections: Positive = 8_192
    """Open client connections, TLS handshakes included. A further one takes the place of the connection that has been
    idle for longest; where none is idle, it is closed at accept. Lowered at start to what RLIMIT_NOFILE carries."""
    max_admin_connections: Positive = 256
    """The same for the admin port."""
    max_header_bytes: Positive = 65_536
    """Request line and headers together (431)."""
    max_body_bytes: Positive = 67_108_864
    """One request body (413)."""
    max_buffered_body_bytes: Bytes = "auto"
    """All request bodies in memory together: those being received, and those kept until a worker has begun to answer.
    Further ones get 503; a single body larger than this gets 413, whatever max_body_bytes says. auto: a part of the
    memory limit, at most 1 GiB; with several processes no body may then be larger than one process's share."""
    max_queued_requests: Count = 1_000
    """Requests queued at once because no worker is ready; further ones get 503."""
    max_held_requests: Count = 1_000
    """Requests held at once because the policy waits for a better moment; further ones go to a worker without delay."""
    max_concurrent_requests: Count = 0
    """Requests in progress at once, those that wait for a worker included, per process; further ones get 503 with
    Retry-After. 0: no limit."""
    max_requests_per_worker: Count = 0
    """Requests booked on one worker (or data-parallel rank) at once; when no worker has room, 503 with Retry-After.
    0: no limit."""
    write_buffer_bytes: Positive = 65_536
    """Unsent response bytes per stream before its worker's socket is paused."""
    max_buffered_response_bytes: Bytes = "auto"
    """Unsent response bytes of all clients that do not read fast enough. From half of it on streams are paused as soon
    as anything is left unsent; beyond it the client that has read nothing for the longest is cut off. auto: a part of
    the memory limit, at most 256 MiB."""


class TimeoutsConfig(Section, frozen=True):
    """How long each phase may take."""

    connect_s: Seconds = 2.0
    """TCP connect to a worker."""
    first_event_s: Seconds = 600.0
    """Sent request to first real event of the response."""
    upstream_head_s: Seconds = 10.0
    """First byte of a worker's response head to its end."""
    stream_idle_s: Seconds = 120.0
    """Gap between two reads of a started response. One that brings no event and fewer than 16 bytes per second for as
    long counts as stalled, too."""
    total_s: Seconds = 3600.0
    """Whole request, from its last byte in to the response's last byte out."""
    client_header_s: Seconds = 20.0
    """First byte of a request to the end of its headers (408). On the admin port the first request must come as soon,
    too."""
    client_body_s: Seconds = 120.0
    """End of headers to the end of the body (408)."""
    client_idle_s: Seconds = 75.0
    """Idle keep-alive connection of a client."""
    tls_handshake_s: Seconds = 10.0
    """A client's TLS handshake, on a port that has TLS."""
    upstream_idle_s: Seconds = 4.0
    """Idle connection to a worker; vLLM closes its side after 5 s."""
    queue_s: Annotated[float, Meta(ge=0)] = 10.0
    """How long a request is queued when no worker is ready for its model."""
    header_delay_s: Seconds = 15.0
    """Streams only: the response headers wait for the first event, but at most this long. SSE comments follow them."""
    comment_interval_s: Seconds = 15.0
    """Gap between keep-alive comments on a stream without a first event."""
    drain_delay_s: Annotated[float, Meta(ge=0)] = 0.0
    """After SIGTERM readiness is off at once, and connections are still accepted for this long: the time a load
    balancer takes to see it."""
    drain_s: Annotated[float, Meta(ge=0)] = 30.0
    """How long requests in progress may take to end after that."""
    drain_idle_s: Annotated[float, Meta(ge=0)] = 5.0
    """Once nothing is accepted any more, an idle keep-alive connection is closed when it has been idle for this long
    (in all), or at the end of drain_s. Its next request until then is answered with Connection: close."""
    takeover_ready_s: Seconds = 15.0
    """How long a process that takes over waits for its workers' first probes before it does."""


class HealthConfig(Section, frozen=True):
    """Probes and passive signals."""

    probe_interval_s: Seconds = 1.0
    """Gap between two probes of one worker."""
    probe_timeout_s: Seconds = 2.0
    """One probe's limit."""
    failure_threshold: Positive = 3
    """Consecutive failures that eject a worker."""
    success_threshold: Positive = 1
    """Consecutive successful probes that bring it back."""
    half_open_after_s: Seconds = 1.0
    """Ejected by traffic but probing well: one trial request after this long."""
    slow_start_s: Annotated[float, Meta(ge=0)] = 0.0
    """A worker that joins, comes back or wakes up is offered to a tenth of the requests at first, and to all of them
    after this long. 0: at once, since what is booked on a worker keeps crowds away from it anyway; set it where the
    first requests after a start are much slower than later ones."""
    load_interval_s: Seconds = 1.0
    """Gap between two reads of a worker's /metrics."""


class RetriesConfig(Section, frozen=True):
    """How often another worker is tried for a request that failed before its answer began."""

    max_attempts: Positive = 3
    """Workers tried for one request; after the second that fails with the request in hand no further one is."""
    budget_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.2
    """Further attempts allowed, as a share of the requests of the last half minute. Connections that could not be made
    do not count: no worker has done anything for them."""
    budget_floor_per_s: Annotated[float, Meta(ge=0)] = 3.0
    """Further attempts per second that are allowed beside, so that a quiet gateway may still retry."""
    query_of_death_s: Annotated[float, Meta(ge=0)] = 600.0
    """How long a request is refused (422, `request_crashes_workers`) after two workers died before they had begun to
    answer it, each with at most four different requests in that state. Only a digest of its body is kept, and any
    answer to the same body clears it. 0: never; then such a request may be sent to worker after worker."""


class ResidencyConfig(Section, frozen=True):
    """What is remembered of the workers' caches."""

    kv_events: bool = True
    """Subscribe to KV events where a worker publishes them."""
    self_test: bool = True
    """Send one short prompt twice to each new worker to see whether its view is exact, and again later where that
    showed nothing."""
    memo_bytes: Bytes = "auto"
    """Memory for tokenised prefixes; texts of running requests take up to 8 MiB beside it. auto: a part of the memory
    limit, at most 128 MiB."""
    approximate_bytes: Bytes = "auto"
    """Memory for the approximate views of all workers together. auto: a part of the memory limit, at most 128 MiB."""
    relearn: Literal["passive", "piggyback"] = "passive"
    """How a worker's view is completed where events were missed and its replay buffer does not reach back that far.
    passive: by what its events and responses say; piggyback: requests whose cached prefix is not known also carry
    vllm_xargs.kv_cache_report_mode "full", so that vLLM (0.26 and later) announces it again."""
    relearn_blocks_per_s: Positive = 1_000
    """Blocks that one worker is asked to announce again per second, on average; each costs it about 2 us between two
    steps, and 80 bytes of events with 16 tokens to a block."""


class ObserveUsageConfig(Section, frozen=True):
    """How responses come to say how many prompt tokens were cached."""

    mode: Literal["passive", "inject"] = "passive"
    """passive: bodies go out byte for byte, so a stream whose client did not ask for usage reports none. inject: some
    of those streams are made to report it, by stream_options.include_usage; the frame is taken out again."""
    sample: Annotated[float, Meta(gt=0, le=1)] = 0.1
    """Share of the streams without usage that report it under inject."""


class CorsConfig(Section, frozen=True):
    """Cross-origin access from browsers; off while `allow_origins` is empty."""

    allow_origins: tuple[str, ...] = ()
    """Origins allowed, or "*"."""
    allow_headers: tuple[str, ...] = ("authorization", "content-type", "x-request-id")
    """Request headers a preflight may ask for."""
    max_age_s: Count = 600
    """How long a browser may keep a preflight's answer."""


class PathConfig(Section, frozen=True):
    """One more inference path to forward."""

    path: str
    """Exact path, or a prefix ending in /*."""
    methods: tuple[str, ...] = ("POST",)
    """Methods allowed."""


class HeadersConfig(Section, frozen=True):
    """Response headers the gateway adds."""

    worker: bool = False
    """x-warmroute-worker: the worker that answered."""
    predicted_cached_tokens: bool = False
    """x-warmroute-predicted-cached-tokens: what the router expected to be cached; and x-warmroute-residency: how far
    that can be trusted for this prompt (exact, approximate, unknown, off)."""


class AuthConfig(Section, frozen=True):
    """Who may use the public port: everybody, unless a key or a file of keys is named."""

    api_keys: tuple[str, ...] = ()
    """Hashed keys, one NAME sha256:HEX each; `warmroute keys new NAME` makes one."""
    api_keys_file: str | None = None
    """File with further ones, one per line; read again when it changes. A file that cannot be used then leaves the keys
    as they were; an empty one lets nobody in."""
    inject_worker_key: bool = False
    """Forwarded requests carry their worker's api_key in place of their client's Authorization. Always so while the
    port has keys: a client's key is ours and goes to no worker."""
    isolate_cache: Literal["off", "key", "group"] | None = None
    """Whose requests share cached prefixes on the workers. off: everybody's. key: those that bring keys of the same
    name. group: those of tenants with the same cache_group. The gateway sets cache_salt in the request body for that.
    Default: key where the port has keys, else off."""
    isolation_secret: Secret | None = None
    """Secret that the salts of isolate_cache are derived from, the same for every gateway of a fleet. It is needed only
    where somebody else than the gateway can send requests to the workers."""
    allow: tuple[Literal["transfer_params", "priority", "rank"], ...] = ()
    """What every caller may send, as trusted tenants may. transfer_params: kv_transfer_params with other members than
    prompt_token_ids, and ec_transfer_params. priority: a body's priority and x-vllm-priority. rank:
    X-data-parallel-rank. Otherwise such a body is answered with 400, and such a header goes to no worker."""


class TenantConfig(Section, frozen=True):
    """API keys that share quotas and cached prefixes."""

    keys: tuple[str, ...] = ()
    """Names of the tenant's API keys, as in auth.api_keys. No key belongs to two tenants."""
    cache_group: str | None = None
    """Tenants with the same group share cached prefixes where auth.isolate_cache is group. Default: the tenant is a
    group of its own."""
    max_queued_requests: Count | None = None
    """The tenant's requests queued and held at once. One more that finds no worker ready gets 503; one more that the
    policy would hold goes to a worker without delay. Default: only the counts in limits apply."""
    max_buffered_body_bytes: Positive | None = None
    """The tenant's request bodies in memory together (503); a single larger body gets 413. Default: only
    limits.max_buffered_body_bytes counts."""
    trusted: bool = False
    """The tenant may send all that auth.allow names."""


class TlsConfig(Section, frozen=True):
    """TLS on a port; off while `cert_file` is not set. The files are read again when they change."""

    cert_file: str | None = None
    """PEM file: the certificate, then those between it and its CA."""
    key_file: str | None = None
    """PEM file with its private key, without a pass phrase; not needed where cert_file holds it."""
    client_ca_file: str | None = None
    """PEM file with the CAs of clients' certificates; where it is set, every client has to show one."""


class WorkerTlsConfig(Section, frozen=True):
    """TLS to workers whose URL is https://, for requests, probes and /tokenize. KV events are not encrypted."""

    ca_file: str | None = None
    """PEM file with the CAs to trust; default: the system's."""
    verify: bool = True
    """Check workers' certificates and names. Without it anybody on the way can read and change everything."""
    cert_file: str | None = None
    """PEM file with a client certificate to show to workers."""
    key_file: str | None = None
    """PEM file with its private key; not needed where cert_file holds it."""
    server_name: str | None = None
    """The name that every worker's certificate must have, in place of the host in its URL."""


class Config(Section, frozen=True):
    """Everything `warmroute serve` can be told."""

    host: str = "0.0.0.0"
    """Address or host name of the public port; "::" is every address, IPv6 and IPv4, "0.0.0.0" every IPv4 one."""
    port: Port = 8000
    """Public port."""
    uds: str | None = None
    """Unix socket for the public side, instead of host and port."""
    takeover: str | None = None
    """Unix socket by which a new process takes over the listening sockets of a running one, and then has it drain."""
    admin_host: str = "127.0.0.1"
    """Address of the admin port."""
    admin_port: Port = 8001
    """Admin port: REST API, health and metrics."""
    admin_token: Secret | None = None
    """What callers of the admin port have to send as Authorization: Bearer, or its sha256:HEX; /livez and /readyz stay
    open. Not set: whoever reaches the port may use it."""
    admin_token_file: str | None = None
    """File that holds the token, or its sha256:HEX, instead; read again when it changes."""
    admin_metrics_open: bool = False
    """/metrics needs no token."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    """TLS on the public port."""
    admin_tls: TlsConfig = field(default_factory=TlsConfig)
    """TLS on the admin port."""
    auth: AuthConfig = field(default_factory=AuthConfig)
    """API keys of the public port."""
    tenants: dict[str, TenantConfig] = field(default_factory=dict)
    """Tenants by name. A key in no tenant has no quota."""
    processes: Positive | Literal["auto"] = 1
    """Processes that share the public port, each on a core of its own; auto: as many as there are cores. The counts in
    `limits` and `tenants` are for all of them together, memory in `residency` for each."""
    workers: tuple[WorkerConfig, ...] = ()
    """The fleet; more can be added through the admin API."""
    worker_tls: WorkerTlsConfig = field(default_factory=WorkerTlsConfig)
    """TLS to workers."""
    model_dir: str | None = None
    """Folder with tokenizer.json and tokenizer_config.json, for every model not under `models`."""
    tokenizer: str | None = None
    """A tokenizer.json, or a folder that holds one, where it lies apart from model_dir."""
    models: dict[str, ModelConfig] = field(default_factory=dict)
    """Local files by served model name."""
    trust_request_chat_template: bool = False
    """Run the chat templates that requests bring along, as vllm serve --trust-request-chat-template does: they are
    programs that take what time they like. Without it such requests are placed by their text."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """How a worker is chosen."""
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    """Sizes and counts."""
    timeouts: TimeoutsConfig = field(default_factory=TimeoutsConfig)
    """Durations."""
    health: HealthConfig = field(default_factory=HealthConfig)
    """When a worker counts as ready."""
    retries: RetriesConfig = field(default_factory=RetriesConfig)
    """Further attempts after a failure."""
    residency: ResidencyConfig = field(default_factory=ResidencyConfig)
    """What is known of the workers' caches."""
    observe_usage: ObserveUsageConfig = field(default_factory=ObserveUsageConfig)
    """Reports of cached tokens."""
    cors: CorsConfig = field(default_factory=CorsConfig)
    """Browsers."""
    headers: HeadersConfig = field(default_factory=HeadersConfig)
    """Response headers."""
    extra_paths: tuple[PathConfig, ...] = ()
    """Inference paths to forward besides those vLLM serves."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks (CIDR) whose X-Forwarded-For is believed."""
    access_log: bool = False
    """One log line per request."""
    decisions_kept: Count = 1_000
    """Decisions kept for GET /admin/v1/decisions, with all candidates as far back as 32,768 of them reach."""
    admin_hosts: tuple[str, ...] = ()
    """Further Host names the admin port answers to, besides loopback names and admin_host."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level logged."""
    log_format: Literal["text", "json"] = "text"
    """One line of text, or one JSON object, per event."""


def to_builtins(config: Config) -> dict[str, Any]:
    """`config` as plain values, for display: keys are struck out, hashed ones but for their names."""
    built: dict[str, Any] = msgspec.to_builtins(config)
    for worker in built["workers"]:
        if worker["api_key"] is not None:
            worker["api_key"] = STRUCK_OUT
    if built["admin_token"] is not None:
        built["admin_token"] = STRUCK_OUT
    if built["auth"]["isolation_secret"] is not None:
        built["auth"]["isolation_secret"] = STRUCK_OUT
    built["auth"]["api_keys"] = [f"{line.split()[0]} sha256:{STRUCK_OUT}" for line in config.auth.api_keys]
    return built

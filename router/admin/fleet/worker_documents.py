"""Documents of a worker."""

from __future__ import annotations

from typing import Literal

import msgspec

from router.admin.documents import Shape


class ServedModelDocument(Shape):
    """A served model. `parent` is set for a LoRA adapter. `prompts` says where prompt token ids come from."""

    id: str
    root: str | None
    parent: str | None
    max_model_len: int | None
    prompts: str


class Load(Shape):
    """Reserved load: requests and prompt tokens queued for prefill, running requests, and the context tokens they hold.

    `foreign_requests` are requests in the worker's report that this gateway did not send.
    """

    queued_requests: int = 0
    queued_tokens: int = 0
    running_requests: int = 0
    kv_tokens: int = 0
    foreign_requests: int = 0


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
    differences: dict[str, int] = msgspec.field(default_factory=dict)
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
    links: list[LinkDocument] = msgspec.field(default_factory=list)


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
    also: list[str] = msgspec.field(default_factory=list)
    leaving: bool = False

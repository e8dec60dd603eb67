"""The JSON documents of the admin API. Times are seconds, sizes tokens or blocks as named; shares run from 0 to 1.

Where another class of the router has a document's name, the class here ends in Document; the API drops that suffix.
"""

from __future__ import annotations

from typing import Any

import msgspec

from router.config.model import KvEventsConfig, Secret


class Shape(msgspec.Struct, kw_only=True, omit_defaults=False):
    """Base of what is answered."""


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of what is asked."""


class ProblemDocument(Shape):
    """An error (RFC 9457), served as application/problem+json. `code` is stable."""

    type: str
    title: str
    status: int
    detail: str
    code: str


class Live(Shape):
    """The process serves."""

    status: str = "alive"


class Ready(Shape, kw_only=True):
    """Requests can be served, by `processes_ready` of the gateway's `processes`."""

    status: str = "ready"
    workers_ready: int
    workers: int
    processes_ready: int = 1
    processes: int = 1


class NewWorker(Body):
    """A worker to add. `kv_events` only where the worker's /kv_event_sources cannot say.

    `api_key` where vLLM was started with one; it is never shown again. `labels` are for the policy.
    """

    url: str
    kv_events: KvEventsConfig | None = None
    api_key: Secret | None = None
    labels: dict[str, str] = {}

    def __repr__(self) -> str:
        """Without the key."""
        return f"NewWorker(url={self.url!r}, kv_events={self.kv_events!r}, labels={self.labels!r})"


class ServedModelDocument(Shape):
    """A model card. `parent` is set for a LoRA adapter; `prompts` says how its prompts' identity is had."""

    id: str
    root: str | None
    parent: str | None
    max_model_len: int | None
    prompts: str


class Load(Shape):
    """What is booked: prompt tokens waiting for their prefill, requests in flight, context tokens they hold.

    `foreign_requests` are in the worker's own report and not ours.
    """

    queued_requests: int = 0
    queued_tokens: int = 0
    running_requests: int = 0
    kv_tokens: int = 0
    foreign_requests: int = 0


class Estimates(Shape):
    """What first tokens and whole answers have taught of a candidate's speed; null until learned.

    `queue_wait_s` is the wait before a new prompt's prefill would start, `utilisation` the share of time spent on
    prefills, `relative_error` the standard error of a predicted time to first token, `decode_step_context_ns` what each
    context token that the candidate holds adds to a decode step.
    """

    observations: int = 0
    prefill_token_us: float | None = None
    first_token_fixed_ms: float | None = None
    relative_error: float | None = None
    decode_step_context_ns: float | None = None
    queue_wait_s: float | None = None
    utilisation: float | None = None


class PredictedCached(Shape):
    """Predicted against reported cached tokens, over the responses that reported them.

    `equal`, `over` and `under` count responses. `differences` counts those that differed by what explains it:
    scheduled_since (more was found: these blocks were stored, or word of it came, after the decision), slower_tier
    (more was found, and the worker also caches outside its GPU), evicted_while_queued (less was found: the first
    missing block was evicted after the decision), reserved_not_scheduled (less was found: it counted on a request in
    flight that had not come so far), cleared (the cache was cleared or the worker restarted in between), approximate
    (the view was not exact) and other (nothing explains it: events are lost, or this router and the worker mean
    different blocks); `pending` ones wait for what explains them.
    """

    equal: int = 0
    over: int = 0
    under: int = 0
    absolute_error_tokens: int = 0
    reported_tokens: int = 0
    differences: dict[str, int] = {}
    pending: int = 0


class Events(Shape):
    """One candidate's KV event stream. `lag_s` is the age of the newest batch when it came in, by the hosts' clocks.

    `gaps` are losses noticed, `replayed_batches` what was fetched again; `decode_errors` count unreadable batches.
    Where neither helped, `relearn_asks` requests asked to be told again what they found cached, which taught
    `relearned_blocks`, of `reannounced_blocks` announced in all; `relearned` counts how often that made a view whole.
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
    """What sending one short prompt twice showed: exact, approximate, off or unknown, and why."""

    verdict: str
    reason: str


class CandidateDocument(Shape):
    """One place a request can go: the endpoint, or one data-parallel rank of it (``host:port#rank``).

    `residency` is exact, approximate, unknown or off, `reason` says why; `blocks` are believed to be in its cache.
    `events` is null where no KV events are followed, `self_test` where none has ended.
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


class Worker(Shape):
    """One endpoint. `state` is starting, ready, asleep, unhealthy, half_open or draining; `reason` says why.

    `restarts` were noticed while it was watched; `in_flight` counts requests that are there now, those of a gateway
    whose place this one took included; `notes` say what it left unanswered and how to change that.
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


class Workers(Shape):
    """The fleet, in the order in which workers joined."""

    workers: list[Worker]


class NewPolicy(Body):
    """The policy to use from the next request on."""

    name: str
    params: dict[str, Any] = {}


class AvailablePolicy(Shape):
    """A policy that can be chosen, its parameters with type and default, and the terms of its cost in one line each."""

    name: str
    summary: str
    params: dict[str, Any]
    terms: dict[str, str]


class PolicyDocument(Shape):
    """The policy in use, and all that can be. `statistics` is what it shows of its state, its own; of several
    processes that of the one which answers."""

    name: str
    params: dict[str, Any]
    statistics: dict[str, Any]
    available: list[AvailablePolicy]


class Question(Body, kw_only=True):
    """A request as a client would send it to the public port. `body` is its JSON, or that JSON as text. `key` is the
    name of the API key that it would bring: its tenant decides what the request may contain, and which cached prefixes
    it shares."""

    path: str = "/v1/chat/completions"
    headers: dict[str, str] = {}
    key: str | None = None
    body: msgspec.Raw


class CandidateView(Shape):
    """What was known of one candidate when the choice was made.

    Running requests hold `kv_tokens` of its `kv_capacity_tokens` (0: not known), and those that have just ended have
    left `idle_tokens` there that their next turns are expected to ask for.
    `first_token_s` = `queue_wait_s` + `prefill_s`: seconds to its first token, null until some worker's speed is
    `learned`. `cost` is the policy's own figure in `unit`, lower is better; `terms` are its named parts.
    """

    worker: str
    residency: str
    cached_tokens: int
    uncached_tokens: int
    queued_tokens: int
    running_requests: int
    kv_tokens: int
    idle_tokens: int
    kv_capacity_tokens: int
    queue_wait_s: float | None
    prefill_s: float | None
    first_token_s: float | None
    utilisation: float
    learned: bool
    cost: float | None
    unit: str
    terms: dict[str, float]


class ExplanationDocument(Shape):
    """The decision that a request would get now; nothing was sent or reserved.

    `action` is dispatch, hold (the request waits in the gateway, at most `hold_s`, then goes to `choice`), queue (no
    worker is ready) or reject; `reason` says why. `choice` is null for queue and reject. `candidates` come best first;
    `terms` says in one line what each term of their cost means. `excluded` gives a reason for each other worker.
    """

    request_id: str
    model: str | None
    prompt_tokens: int
    policy: str
    choice: str | None
    action: str
    hold_s: float
    reason: str
    candidates: list[CandidateView]
    terms: dict[str, str]
    excluded: dict[str, str]


class DecisionDocument(Shape):
    """One attempt at one request. `outcome` is running, finished, cancelled or "failed: ...".

    `waited_s` is how long before that it had arrived: a moment, unless the policy kept it back or an attempt failed.
    `residency` is how far `predicted_cached_tokens` could be trusted: approximate where the prompt was known as text
    only, however exact the worker's view is. `difference` is what explains that another number was reported (pending,
    or one of those of `PredictedCached`), null where none was. `process` is which of the gateway's processes decided.
    `candidates` are all there were for the latest decisions, and the chosen one for those before: each process keeps
    32,768 in all.
    """

    at: str
    age_s: float
    request_id: str
    model: str | None
    prompt_tokens: int
    waited_s: float
    attempt: int
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
    process: int = 0


class Decisions(Shape):
    """The latest decisions, newest first."""

    decisions: list[DecisionDocument]

"""The routing probe, which routers of models ask: how warm and how busy is the worker that a chat would get now?

The document is that of Dynamo's picker, so that a client of one reads the other. `null` is not known.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from math import ceil
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from policies.view import Residency, WorkerView
from router.admin.documents import Shape
from router.admin.http.probe_slots import LIMIT_S
from router.admin.http.problems import AdminError, invalid
from router.admin.operations import Answer, Call, OverProcesses, forwarded, operation
from router.admin.replies import Replies, documents_of
from router.admin.system import ProcessView
from router.errors import RequestError
from router.placement.explain import Explanation
from router.placement.fleet.endpoints import Candidate
from router.placement.request import Request
from router.replicas.replica import name_of
from router.residency.view import Match

_MARGIN_S = 0.5
"""How much longer a supervisor waits for its processes."""
MOST_BYTES = 2 << 20
_PATH = "/v1/chat/completions"
_STATUSES = frozenset({400, 413, 415, 422, 429, 503, 504})
_GPU, _CPU = "GPU", "CPU"

EstimateSource = Literal["events", "approximate", "mixed", "unavailable"]


class ProbedChat(msgspec.Struct, kw_only=True):
    """A request as a client would send it to `/v1/chat/completions`, with all its other fields."""

    model: str | None = None
    messages: Annotated[list[msgspec.Raw], Meta(min_length=1)]


class ProbedCache(Shape, kw_only=True):
    """The longest prefix of the prompt that the worker has, in tokens: on its GPU, and with each slower tier.

    `estimate_source`: `events` is an exact worker cache, `approximate` a model of it, and `mixed` has both: blocks of
    requests on their way, or a cache relearned after lost events. `unavailable`: nothing is known, which is no miss.
    """

    estimate_source: EstimateSource
    gpu_prefix_tokens: int | None = None
    cpu_prefix_tokens: int | None = None
    disk_prefix_tokens: int | None = None
    predicted_gpu_hit_rate: float | None = None
    predicted_cpu_inclusive_hit_rate: float | None = None
    predicted_disk_inclusive_hit_rate: float | None = None
    effective_prefill_tokens: int


class ProbedLoad(Shape, kw_only=True):
    """The requests placed on the worker: prompt tokens that wait for their prefill, and blocks of context with this
    request, as if it shared none with a running one."""

    active_prefill_tokens: int
    prefill_token_capacity: int | None = None
    potential_decode_blocks: int | None
    total_kv_blocks: int | None


class ProbedCandidate(Shape):
    """The worker that the request would get. `dp_rank` is 0 for a worker of one rank."""

    worker_id: str
    dp_rank: int
    cache: ProbedCache
    load: ProbedLoad


class ProbedPool(Shape):
    """The requests of all models that wait for a worker in this gateway."""

    pending_requests: int | None
    pending_input_tokens: int | None


class RoutingProbe(Shape):
    """The worker that a chat would get now, as Dynamo's picker describes it; nothing was reserved or queued.

    `prompt_tokens` is an estimate unless `candidate.cache.estimate_source` is events or mixed.
    """

    model: str | None
    epp_instance: str
    sampled_at_unix_ms: int
    prompt_tokens: int
    block_size: int | None
    candidate: ProbedCandidate
    pool: ProbedPool


def _over_processes(call: Call, replies: Replies) -> Answer:
    """Return the document of the first process that has one, with the sum of all queues."""
    found = documents_of(replies, RoutingProbe)
    if not found:
        return forwarded(next(iter(replies.values())))
    documents = list(found.values())
    probe, complete = documents[0], len(documents) == call.system.processes
    probe.pool = ProbedPool(
        pending_requests=_sum(complete, [one.pool.pending_requests for one in documents]),
        pending_input_tokens=_sum(complete, [one.pool.pending_input_tokens for one in documents]),
    )
    return Answer(probe)


@operation(
    "POST",
    "/v1/routing/probe",
    takes=ProbedChat,
    gives=RoutingProbe,
    most_body_bytes=MOST_BYTES,
    problems={
        422: "a field is missing or has a value that is not valid, or no worker serves the model",
        429: "four routing probes are in progress",
        503: "no worker can take the request now",
        504: "the answer takes longer than a second",
    },
    processes=OverProcesses(_over_processes, limit_s=LIMIT_S + _MARGIN_S),
)
async def probe_routing(call: Call) -> Answer:
    """How warm and how busy the worker is that a chat without an API key would get now. Fallbacks are not asked."""
    chat: ProbedChat = call.body
    try:
        previewed = await call.port.probes.result(lambda: call.process.gateway.preview(_PATH, {}, call.raw))
    except RequestError as error:
        if error.kind.spec.status in _STATUSES:
            raise
        raise invalid(error.message) from None
    return Answer(_probed(call.process, previewed.request, chat.model))


def _probed(system: ProcessView, request: Request, asked: str | None) -> RoutingProbe:
    explanation = system.core.explainer.explain(request, system.now_s())
    candidate = next((one for one in system.fleet.candidates if one.id == explanation.choice), None)
    if candidate is None:
        raise _no_candidate(system, request, explanation)
    assert explanation.fleet is not None
    row = explanation.fleet.row_of(candidate.id)
    assert row is not None, "the choice is among the candidates"
    view = explanation.fleet.worker(row)
    return RoutingProbe(
        model=asked or request.model,
        epp_instance=name_of(system.config),
        sampled_at_unix_ms=int(time.time() * 1_000),
        prompt_tokens=explanation.request.prompt_tokens,
        block_size=_block_tokens(candidate),
        candidate=ProbedCandidate(
            worker_id=candidate.endpoint.id,
            dp_rank=candidate.rank or 0,
            cache=_cache(system, request, candidate, view),
            load=_load(candidate, view, explanation.request.prompt_tokens),
        ),
        pool=_pool(system.gateway.statistics()),
    )


def _no_candidate(system: ProcessView, request: Request, explanation: Explanation) -> AdminError:
    models, model = system.fleet.models, request.model
    if model is not None and models.known(models.base(model) or model) is False:
        return invalid(explanation.reason)
    headers = {"retry-after": "1"}
    return AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", explanation.reason, headers=headers)


def _cache(system: ProcessView, request: Request, candidate: Candidate, view: WorkerView) -> ProbedCache:
    prompt, slot = request.prompt, candidate.slot
    match = system.residency.match(prompt, [slot])[slot] if prompt is not None and request.reads_cache else None
    if prompt is None or match is None or match.residency is Residency.UNKNOWN:
        return ProbedCache(estimate_source="unavailable", effective_prefill_tokens=view.uncached_tokens)
    modelled = system.residency.slot(slot).modelled or not prompt.exact or match.residency is Residency.OFF
    tokens, tiers = match.tokens, match.by_tier or {}
    with_cpu = max(tokens, tiers.get(_GPU, 0) + tiers[_CPU]) if _CPU in tiers else None
    with_disk = max(tokens, sum(tiers.values())) if tiers.keys() - {_GPU, _CPU} else None
    return ProbedCache(
        estimate_source="approximate" if modelled else _by_events(match),
        gpu_prefix_tokens=tokens,
        cpu_prefix_tokens=with_cpu,
        disk_prefix_tokens=with_disk,
        predicted_gpu_hit_rate=_share(tokens, prompt.tokens),
        predicted_cpu_inclusive_hit_rate=_share(with_cpu, prompt.tokens),
        predicted_disk_inclusive_hit_rate=_share(with_disk, prompt.tokens),
        effective_prefill_tokens=view.uncached_tokens,
    )


def _by_events(match: Match) -> EstimateSource:
    return "events" if match.residency is Residency.EXACT and not match.reserved_tokens else "mixed"


def _load(candidate: Candidate, view: WorkerView, prompt_tokens: int) -> ProbedLoad:
    block_tokens = _block_tokens(candidate)
    return ProbedLoad(
        active_prefill_tokens=view.queued_tokens,
        potential_decode_blocks=ceil((view.kv_tokens + prompt_tokens) / block_tokens) if block_tokens else None,
        total_kv_blocks=candidate.capacity_blocks,
    )


def _pool(statistics: dict[str, Any]) -> ProbedPool:
    """Return the requests that wait. Their tokens are known while there are none."""
    routes = [figures["queued"] for figures in statistics.get("routes", {}).values()]
    waiting = [statistics.get("queued"), statistics.get("held"), *routes]
    pending = _sum(True, waiting)
    return ProbedPool(pending_requests=pending, pending_input_tokens=None if pending is None or pending else 0)


def _block_tokens(candidate: Candidate) -> int | None:
    return None if candidate.capacity_blocks is None else candidate.block_tokens


def _share(part: int | None, whole: int) -> float | None:
    return None if part is None or not 0 <= part <= whole or not whole else part / whole


def _sum(complete: bool, counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if complete and len(known) == len(counts) else None

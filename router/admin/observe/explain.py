"""The decision that a request would get now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from backends.foreign_json import read_json
from backends.vllm.handover.answer_apis import ANSWER_APIS
from backends.vllm.handover.connectors import CONNECTORS
from backends.vllm.handover.parameters import HandoverError
from backends.vllm.handover.request_body import split
from policies.handover_cost import TERMS
from policies.registry import terms_of
from router.admin.documents import Body, Shape
from router.admin.http.problems import invalid
from router.admin.operations import Answer, Call, operation
from router.admin.system import ProcessView
from router.gateway.layers.handover.kv_plans import may_be_shared
from router.placement.explain import Explainer, Explanation
from router.placement.fleet.fleet import Fleet
from router.requests.preview import PreviewedRequest

_WHOLE = "two workers cannot share this request"


class Question(Body, kw_only=True):
    """A request as a client would send it to the public port.

    `body` is the request's JSON, or that JSON as text. `key` is the name of the client's API key. The key's tenant
    decides which parameters the request may have, and which cached prefixes it shares.
    """

    path: str = "/v1/chat/completions"
    headers: dict[str, str] = msgspec.field(default_factory=dict)
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
    pairs: list[HandoverPair] = msgspec.field(default_factory=list)
    alone: list[HandoverAlone] = msgspec.field(default_factory=list)
    terms: dict[str, str] = msgspec.field(default_factory=dict)


class AdmissionExplanation(Shape):
    """The turn that the request would get in its class. `place` requests of its class are before it.

    `action` is dispatch, wait, refuse or queue (no worker is ready), and `reason` says why. `ttft_s` is the time to its
    first token to expect; null while no worker is ready.
    """

    request_class: str
    tenant: str
    place: int
    ttft_s: float | None
    action: str
    reason: str


class MigrationExplanation(Shape):
    """Whether the answer could go on at another worker after the death of its own.

    `reason` says why not: one of `warmroute_migration_requests_total`, or whole_answer without a stream, which is
    retried; null if it can. It may go on `limit` times, and leaves a worker that has drained for `drain_after_s`.
    """

    reason: str | None
    limit: int
    drain_after_s: float | None


class ExplanationDocument(Shape):
    """The decision that a request would get now; nothing was sent or reserved.

    `action` is dispatch, hold, queue (no worker is ready) or reject, and `reason` says why. A held request waits in the
    gateway for at most `hold_s`, then goes to `choice`. `choice` is null for queue and reject. `candidates` come best
    first. `terms` explains each term of their cost in one line. `excluded` gives a reason for each other worker.
    `prompt_tokens` is counted if `prompt_tokens_exact`, else estimated from the size of the body or of the text.
    `policy` is the name in `policies`, or the rule of `policy`. `choice_name` is the name of the chosen worker, if it
    has one. `passed_over` are the other models that were tried, in order, of the request's model and its fallbacks.
    If a fallback would serve, `model` is the fallback. `handover` is null without `handover.connector`, and
    `admission` without `classes`, and `migration` where the route has none.
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
    passed_over: list[PassedOverModel] = msgspec.field(default_factory=list)
    handover: HandoverExplanation | None = None
    admission: AdmissionExplanation | None = None
    migration: MigrationExplanation | None = None


@operation(
    "POST",
    "/admin/v1/explain",
    takes=Question,
    gives=ExplanationDocument,
    problems={404: "the path is not served"},
    processes="first",
)
async def explain(call: Call) -> Answer:
    """The decision that a request would get now, and why. Nothing is generated on a worker and nothing is reserved."""
    question: Question = call.body
    if not question.path.startswith("/"):
        raise invalid(f"path is {question.path!r}; write one that starts with a slash, as in /v1/chat/completions")
    headers, body = {name.lower(): value for name, value in question.headers.items()}, _bytes(question.body)
    previewed = await call.process.gateway.preview(question.path, headers, body, question.key)
    core, now_s = call.process.core, call.process.now_s()
    explanation, passed_over = _explained(core.explainer, previewed, now_s)
    terms = terms_of(core.policies.of(previewed.request.policy).spec)
    document = msgspec.convert({**explanation.to_builtins(), "terms": terms}, ExplanationDocument)
    document.passed_over = list(map(_passed_over, passed_over))
    name_candidates(document.candidates, call.process.fleet)
    document.choice_name = None if document.choice is None else call.process.fleet.name_of(document.choice)
    if call.process.config.handover.connector is not None:
        document.handover = _handover(call.process, previewed, headers, now_s)
    if previewed.turn is not None:
        document.admission = msgspec.convert(previewed.turn, AdmissionExplanation)
    if (migration := previewed.features.get("migration")) is not None:
        document.migration = msgspec.convert(migration, MigrationExplanation)
    return Answer(document)


def _handover(
    system: ProcessView, previewed: PreviewedRequest, headers: Mapping[str, str], now_s: float
) -> HandoverExplanation:
    assert system.config.handover.connector is not None
    connector, request, body = CONNECTORS[system.config.handover.connector], previewed.request, previewed.body
    fields = {name.encode(): value.encode() for name, value in headers.items()}
    if not may_be_shared(request, fields, body):
        return HandoverExplanation(pays=False, reason=_WHOLE)
    try:
        split(body, ANSWER_APIS[request.path], connector)
    except HandoverError as error:
        return HandoverExplanation(pays=False, reason=f"{_WHOLE}: {error}")
    found = system.core.planner.explain(request, now_s)
    return HandoverExplanation(
        pays=found.pays,
        reason=found.reason,
        pairs=[msgspec.convert(one._asdict(), HandoverPair) for one in found.pairs],
        alone=[msgspec.convert(one._asdict(), HandoverAlone) for one in found.alone],
        terms=dict(TERMS),
    )


def _explained(
    explainer: Explainer, previewed: PreviewedRequest, now_s: float
) -> tuple[Explanation, list[Explanation]]:
    """Return the decision about the request, or about the first fallback that has a worker if its model has none.

    The list has those about the other models that were tried.
    """
    own = explainer.explain(previewed.request, now_s)
    without_worker: list[Explanation] = []
    for other in previewed.fallbacks if own.lacks_worker else ():
        fallback = explainer.explain(other, now_s)
        if fallback.choice is not None:
            return fallback, [own, *without_worker]
        without_worker.append(fallback)
    return own, without_worker


def _passed_over(explanation: Explanation) -> PassedOverModel:
    excluded = {str(worker): reason for worker, reason in explanation.excluded.items()}
    return PassedOverModel(model=explanation.request.model, reason=explanation.reason, excluded=excluded)


def name_candidates(candidates: Sequence[CandidateView], fleet: Fleet) -> None:
    for candidate in candidates:
        candidate.name = fleet.name_of(candidate.worker)


def _bytes(body: msgspec.Raw) -> bytes:
    """Return the request's bytes as written; a JSON string holds them as text."""
    raw = bytes(body)
    if not raw.lstrip().startswith(b'"'):
        return raw
    text: str = read_json(raw, str)
    return text.encode()

"""The decision log, and the decision that a request would get now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from backends.foreign_json import read_json
from backends.vllm.handover.answer_apis import ANSWER_APIS
from backends.vllm.handover.connectors import CONNECTORS
from backends.vllm.handover.parameters import HandoverError
from backends.vllm.handover.request_body import split
from policies.handover_terms import TERMS
from policies.registry import terms_of
from policies.view import WorkerId
from router.admin.documents import (
    CandidateView,
    DecisionDocument,
    ExplanationDocument,
    HandoverAlone,
    HandoverExplanation,
    HandoverPair,
    PassedOverModel,
    Question,
)
from router.admin.http.paging import decode_cursor, encode_cursor
from router.admin.http.parameters import TextQuery
from router.admin.http.problems import invalid
from router.admin.operations import Answer, Call
from router.admin.system import AdminSystem
from router.admin.watch import Watch
from router.gateway.flow.handover.kv_plans import may_be_shared
from router.gateway.preview import PreviewedRequest
from router.placement.decision_log.decisions import DecisionRecord, Explanation
from router.placement.dispatcher import Dispatcher
from router.placement.fleet.fleet import Fleet
from router.placement.handover.explained import ExplainedPair

FILTERS = (
    TextQuery("request_id", "only the attempts of this request"),
    TextQuery("worker", "only decisions for this worker: host:port, host:port#rank, or its name"),
    TextQuery("model", "only requests for this model"),
    TextQuery("route", "only requests of this route"),
    TextQuery("policy", "only decisions of this policy"),
    TextQuery("outcome", "only attempts with this outcome", ("running", "finished", "cancelled", "failed")),
)
CANDIDATES = TextQuery("candidates", "candidates that each decision lists; default: all", ("all", "chosen"))
WATCHED = Watch(
    "decisions", "cursor", frozenset({"at", "age_s"}), newest_first=True, most=100, query={"candidates": "chosen"}
)
READ_AT_MOST = 10_000
"""Decisions that one call reads in one process."""
LISTED_AT_MOST = 32_768
"""Candidates in one page, about 16 MB of JSON."""
_WHOLE = "two workers cannot share this request"
_AT_ONCE = 500
"""Decisions that are filtered between two turns of the event loop."""


class LogPlace(NamedTuple):
    """The place of a decision in the logs of all processes, in the order in which they are listed backwards."""

    at_s: float
    process: int
    ticket_id: int

    @property
    def cursor(self) -> str:
        return encode_cursor(self)

    @classmethod
    def of_cursor(cls, cursor: str | None) -> LogPlace | None:
        """Return the place that a cursor names, or None without one.

        Raises:
            AdminError: 422, the text is no cursor.
        """
        return None if cursor is None else cls(*decode_cursor(cursor, tuple[float, int, int]))


async def latest(call: Call) -> Answer:
    """Answer with a page of the decision log, newest first."""
    place = LogPlace.of_cursor(call.query["cursor"])
    before = None if place is None else (place.at_s, place.ticket_id)
    records = call.system.dispatcher.decisions(READ_AT_MOST + 1, before)
    found, read = await _find(records[:READ_AT_MOST], _filter(call.query, call.system.fleet), call.query["limit"])
    return await _page(call, found, _place(records[read - 1]).cursor if read < len(records) else None)


async def _find(
    records: Sequence[DecisionRecord], wanted: Callable[[DecisionRecord], bool], limit: int
) -> tuple[list[DecisionRecord], int]:
    """Return the first `limit` wanted records, and the number of records read for them."""
    found: list[DecisionRecord] = []
    for index, record in enumerate(records):
        if len(found) == limit:
            return found, index
        if wanted(record):
            found.append(record)
        if index % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
    return found, len(records)


async def _page(call: Call, found: list[DecisionRecord], cursor: str | None) -> Answer:
    clock = _Clock(call.system.now_s(), datetime.now(UTC))
    encoded, listed, chosen_only = [], 0, call.query["candidates"] == "chosen"
    for record in found:
        document = clock.document(record, chosen_only=chosen_only or listed >= LISTED_AT_MOST)
        listed += len(document.candidates)
        _name(document.candidates, call.system.fleet)
        document.worker_name = call.system.fleet.name_of(document.worker)
        encoded.append(msgspec.json.encode(document))
        # Streams run on this event loop too, and a long log of a large fleet must not delay them.
        await asyncio.sleep(0)
    return Answer(b'{"decisions":[' + b",".join(encoded) + b'],"next":' + msgspec.json.encode(cursor) + b"}")


def _filter(query: Mapping[str, Any], fleet: Fleet) -> Callable[[DecisionRecord], bool]:
    """Return a test for the records that `query` asks for."""
    request_id, worker, model, route, policy, outcome = (query[parameter.name] for parameter in FILTERS)

    def wanted(record: DecisionRecord) -> bool:
        return (
            (request_id is None or record.request.id == request_id)
            and (model is None or record.request.model == model)
            and (route is None or record.route == route)
            and (policy is None or record.policy == policy)
            and (worker is None or worker in _names(record.worker, fleet))
            and (outcome is None or record.outcome.startswith(outcome))
        )

    return wanted


def _names(worker: WorkerId, fleet: Fleet) -> tuple[str, str, str | None]:
    return worker, worker.partition("#")[0], fleet.name_of(worker)


def _place(record: DecisionRecord) -> LogPlace:
    return LogPlace(record.at_s, 0, record.ticket_id)


class _Clock(NamedTuple):
    """One moment on both clocks: the core has monotonic seconds, and an operator compares logs by wall clock."""

    now_s: float
    wall: datetime

    def document(self, record: DecisionRecord, *, chosen_only: bool) -> DecisionDocument:
        age_s = max(0.0, self.now_s - record.at_s)
        at = (self.wall - timedelta(seconds=age_s)).isoformat(timespec="milliseconds")
        fields = record.to_builtins(chosen_only=chosen_only)
        return msgspec.convert({**fields, "cursor": _place(record).cursor, "at": at, "age_s": age_s}, DecisionDocument)


async def explain(call: Call) -> Answer:
    """Answer with the dispatcher's decision, which may be about a fallback. Nothing is sent and nothing is reserved."""
    question: Question = call.body
    if not question.path.startswith("/"):
        raise invalid(f"path is {question.path!r}; write one that starts with a slash, as in /v1/chat/completions")
    headers, body = {name.lower(): value for name, value in question.headers.items()}, _bytes(question.body)
    previewed = await call.system.request_of(question.path, headers, body, question.key)
    dispatcher, now_s = call.system.dispatcher, call.system.now_s()
    explanation, passed_over = _explained(dispatcher, previewed, now_s)
    terms = terms_of(dispatcher.spec_of(previewed.request.policy))
    document = msgspec.convert({**explanation.to_builtins(), "terms": terms}, ExplanationDocument)
    document.passed_over = list(map(_passed_over, passed_over))
    _name(document.candidates, call.system.fleet)
    document.choice_name = None if document.choice is None else call.system.fleet.name_of(document.choice)
    if call.system.config.handover.connector is not None:
        document.handover = _handover(call.system, previewed, headers, now_s)
    return Answer(document)


def _handover(
    system: AdminSystem, previewed: PreviewedRequest, headers: Mapping[str, str], now_s: float
) -> HandoverExplanation:
    """Return whether two workers would share the request."""
    assert system.config.handover.connector is not None
    connector, request, body = CONNECTORS[system.config.handover.connector], previewed.request, previewed.body
    fields = {name.encode(): value.encode() for name, value in headers.items()}
    if not may_be_shared(request, fields, body):
        return HandoverExplanation(pays=False, reason=_WHOLE)
    try:
        split(body, ANSWER_APIS[request.path], connector)
    except HandoverError as error:
        return HandoverExplanation(pays=False, reason=f"{_WHOLE}: {error}")
    found = system.dispatcher.explain_handover(request, now_s)
    return HandoverExplanation(
        pays=found.pays,
        reason=found.reason,
        pairs=[_pair(one) for one in found.pairs],
        alone=[HandoverAlone(worker=one.worker, cost_s=one.cost_s, terms=dict(one.terms)) for one in found.alone],
        terms=dict(TERMS),
    )


def _pair(pair: ExplainedPair) -> HandoverPair:
    return HandoverPair(prefill=pair.prefill, decode=pair.decode, cost_s=pair.cost_s, terms=dict(pair.terms))


def _explained(
    dispatcher: Dispatcher, previewed: PreviewedRequest, now_s: float
) -> tuple[Explanation, list[Explanation]]:
    """Return the decision about the request, or about the first fallback that has a worker if its model has none.

    The list has those about the other models that were tried.
    """
    own = dispatcher.explain(previewed.request, now_s)
    without_worker: list[Explanation] = []
    for other in previewed.fallbacks if own.lacks_worker else ():
        fallback = dispatcher.explain(other, now_s)
        if fallback.choice is not None:
            return fallback, [own, *without_worker]
        without_worker.append(fallback)
    return own, without_worker


def _passed_over(explanation: Explanation) -> PassedOverModel:
    excluded = {str(worker): reason for worker, reason in explanation.excluded.items()}
    return PassedOverModel(model=explanation.request.model, reason=explanation.reason, excluded=excluded)


def _name(candidates: Sequence[CandidateView], fleet: Fleet) -> None:
    for candidate in candidates:
        candidate.name = fleet.name_of(candidate.worker)


def _bytes(body: msgspec.Raw) -> bytes:
    """Return the request's bytes as written; a JSON string holds them as text."""
    raw = bytes(body)
    if not raw.lstrip().startswith(b'"'):
        return raw
    text: str = read_json(raw, str)
    return text.encode()

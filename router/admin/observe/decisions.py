"""Pages of the decision log, newest first.

Decisions of several processes are in one order: by time, then by process, then by their order in the process. The
monotonic clock of a host is the same in all its processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from policies.view import WorkerId
from router.admin.documents import Shape
from router.admin.http.paging import decode_cursor, encode_cursor, paged
from router.admin.http.parameters import TextQuery
from router.admin.observe.explain import CandidateView, name_candidates
from router.admin.operations import Answer, Call, OverProcesses, read
from router.admin.replies import Replies, documents_of
from router.admin.watch import Watch
from router.placement.decision_log.decisions import DecisionRecord
from router.placement.fleet.fleet import Fleet

FILTERS = (
    TextQuery("request_id", "only the attempts of this request"),
    TextQuery("worker", "only decisions for this worker: host:port, host:port#rank, or its name"),
    TextQuery("model", "only requests for this model"),
    TextQuery("route", "only requests of this route"),
    TextQuery("policy", "only decisions of this policy"),
    TextQuery("outcome", "only attempts with this outcome", ("running", "finished", "cancelled", "failed")),
)
_CANDIDATES = TextQuery("candidates", "candidates that each decision lists; default: all", ("all", "chosen"))
READ_AT_MOST = 10_000
"""Decisions that one call reads in one process."""
LISTED_AT_MOST = 32_768
"""Candidates in one page, about 16 MB of JSON."""
_AFTER_ALL = 2**62
"""A ticket id that is greater than all others."""
_AT_ONCE = 500
"""Decisions that are filtered between two turns of the event loop."""


class HandoverLegDocument(Shape):
    """A part of a KV handover: `leg` is prefill or decode, and `with_worker` has the other part.

    All parts of one handover have the same `plan`, with a prefill that was repeated on another worker.
    """

    leg: str
    plan: int
    with_worker: str


class SeamDocument(Shape):
    """Where the answer of `from_worker` ends, and `to_worker` goes on with it; null if no worker did.

    `trigger` and `outcome` are those of `warmroute_migrations_total`; a seam is pending until text of `to_worker`
    reaches the client. `kept_tokens` of the answer stay.
    """

    trigger: str
    from_worker: str
    to_worker: str | None
    kept_tokens: int
    outcome: str


class DecisionDocument(Shape):
    """One attempt at one request. `outcome` is running, finished, cancelled or "failed: ...".

    `waited_s` is the time from arrival to this attempt. It is short unless the policy held the request or an attempt
    failed. `residency` says how far `predicted_cached_tokens` can be trusted. It is approximate if only the text of the
    prompt was known. `difference` is the reason why the worker reported another number (pending, or a reason of
    `PredictedCached`), or null. `process` is the number of the process that decided. The first decisions of a page
    have all `candidates`, up to 32,768 in all, and the others only the chosen one; so have those that are older than
    the candidates in memory (`decisions_kept`). `cursor` is the place of the decision in the log: a page with it starts
    at the decision before. `worker_name` is the worker's name now, if it has one. `handover` is null unless the attempt
    is a part of a KV handover. `migration` is tracked if the answer can go on at another worker, or the reason why it
    cannot; null on routes without migration. `seams` are its beginning and its end where another worker has the rest.
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
    migration: str | None = None
    seams: list[SeamDocument] = msgspec.field(default_factory=list)


class Decisions(Shape):
    """The decisions of one page, newest first.

    `next` is the `cursor` of the following page, or null. With filters a page may be short, or empty, although more
    follow: one call reads at most 10,000 decisions of each process.
    """

    decisions: list[DecisionDocument]
    next: str | None = None


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


def _query_of(call: Call, process: int) -> dict[str, Any]:
    """Return the query by which `process` lists its decisions before the cursor."""
    place = LogPlace.of_cursor(call.query["cursor"])
    if place is None or process == place.process:
        return dict(call.query)
    before = place._replace(ticket_id=_AFTER_ALL if process < place.process else 0)
    return {**call.query, "cursor": before.cursor}


def _merged(call: Call, replies: Replies) -> Answer:
    """Return the latest decisions of all pages as one page.

    A process with a `next` has not read its older decisions. Decisions older than that place wait for the next page.
    """
    logs = documents_of(replies, dict[str, Any])
    unread = [place for number, log in logs.items() if (place := _in_process(log["next"], number)) is not None]
    newest_unread = max(unread, default=None)
    merged = sorted(
        ((place, number, decision) for number, log in logs.items() for place, decision in _placed(log, number)),
        key=lambda entry: entry[0],
        reverse=True,
    )
    ready = [entry for entry in merged if newest_unread is None or entry[0] >= newest_unread]
    page = ready[: call.query["limit"]]
    last = page[-1][0] if len(page) < len(ready) else newest_unread
    decisions = [{**decision, "process": number, "cursor": place.cursor} for place, number, decision in page]
    return Answer({"decisions": decisions, "next": None if last is None else last.cursor})


def _placed(log: Mapping[str, Any], process: int) -> list[tuple[LogPlace, Any]]:
    placed = [(_in_process(decision["cursor"], process), decision) for decision in log["decisions"]]
    return [(place, decision) for place, decision in placed if place is not None]


def _in_process(cursor: str | None, process: int) -> LogPlace | None:
    place = LogPlace.of_cursor(cursor)
    return None if place is None else place._replace(process=process)


@read(
    "decisions",
    Decisions,
    query=paged(
        100,
        10_000,
        "most decisions to return; decisions_kept bounds how many there are",
        *FILTERS,
        _CANDIDATES,
        watch=True,
    ),
    watch=Watch(
        "decisions", "cursor", frozenset({"at", "age_s"}), newest_first=True, most=100, query={"candidates": "chosen"}
    ),
    processes=OverProcesses(_merged, _query_of),
)
async def list_decisions(call: Call) -> Answer:
    """The latest decisions with their reasons and outcomes, newest first."""
    place = LogPlace.of_cursor(call.query["cursor"])
    before = None if place is None else (place.at_s, place.ticket_id)
    records = call.process.core.log.latest(READ_AT_MOST + 1, before)
    found, seen = await _find(records[:READ_AT_MOST], _filter(call.query, call.process.fleet), call.query["limit"])
    return await _page(call, found, _place(records[seen - 1]).cursor if seen < len(records) else None)


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
    clock = _Clock(call.process.now_s(), datetime.now(UTC))
    encoded, listed, chosen_only = [], 0, call.query["candidates"] == "chosen"
    for record in found:
        document = clock.document(record, chosen_only=chosen_only or listed >= LISTED_AT_MOST)
        listed += len(document.candidates)
        name_candidates(document.candidates, call.process.fleet)
        document.worker_name = call.process.fleet.name_of(document.worker)
        encoded.append(msgspec.json.encode(document))
        # Streams run on this event loop too, and a long log of a large fleet must not delay them.
        await asyncio.sleep(0)
    return Answer(b'{"decisions":[' + b",".join(encoded) + b'],"next":' + msgspec.json.encode(cursor) + b"}")


def _filter(query: Mapping[str, Any], fleet: Fleet) -> Callable[[DecisionRecord], bool]:
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

"""Workers: list, show, add, change, remove, drain and undrain them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import ClassVar
from urllib.parse import quote

import msgspec

from router.admin import changes
from router.admin.documents import Body, Shape, merge_patch_of
from router.admin.fleet.description import describe_workers
from router.admin.fleet.merged_workers import merge_worker, merge_workers
from router.admin.fleet.sources import SourceDocument, described_sources, with_source
from router.admin.fleet.worker_documents import Worker
from router.admin.http.body_problems import fix_of
from router.admin.http.paging import page_of, paged
from router.admin.http.parameters import Query
from router.admin.http.problems import AdminError, handed_over, invalid
from router.admin.operations import DRY_RUN, Answer, Call, Handle, Operation, OverProcesses, change, forwarded, read
from router.admin.replies import Replies, documents_of
from router.admin.system import AdminView, TakeoverState, WorkerNow
from router.admin.watch import Watch
from router.config.model import KvEventsConfig, Secret, Section, WorkerConfig, WorkerName, WorkerRole, WorkerWeight
from router.control.state import edits
from router.control.state.desired_state import worker_id
from router.placement.fleet.health import SERVING
from router.security.token import Role
from router.workers.settings import worker_findings

_LOOK_S = 0.05
"""Interval between two checks while a call waits."""
_UNKNOWN = {404: "no such worker"}
_WRONG_QUERY = {422: "wait_s is not a whole number from 1 to 3600"}


class NewWorker(Body):
    """A worker to add.

    `kv_events` is needed only if the worker's /kv_event_sources does not list its addresses. `api_key` is the key that
    vLLM got; the API never returns it. `labels` are for the policy. `name`, `weight` and `role` are those of the
    setting `workers`.
    """

    settings: ClassVar[type[Section]] = WorkerConfig
    url: str
    kv_events: KvEventsConfig | None = None
    api_key: Secret | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    name: WorkerName | None = None
    weight: WorkerWeight = 1.0
    role: WorkerRole = "mixed"

    def __repr__(self) -> str:
        """Leave out the key."""
        return f"NewWorker(url={self.url!r}, name={self.name!r}, labels={self.labels!r})"


class KvEventsChange(Body):
    """A merge patch of `kv_events`. Null takes a value back to its default."""

    settings: ClassVar[type[Section]] = KvEventsConfig

    endpoint: str | msgspec.UnsetType = msgspec.UNSET
    replay_endpoint: str | msgspec.UnsetType | None = msgspec.UNSET


WorkerChange = merge_patch_of(
    WorkerConfig,
    "WorkerChange",
    """A merge patch (RFC 7396) of a worker's settings: what it leaves out stays, and null takes a setting back to its
    default. A label that is null is removed.""",
    ("name", "weight", "role", "labels", "maintenance", "kv_events"),
    labels=dict[str, str | None],
    kv_events=KvEventsChange,
)


class Workers(Shape):
    """The workers of one page, in the order in which they were added.

    `next` is the `cursor` of the following page, or null. `sources` are the sources of workers.
    """

    workers: list[Worker]
    next: str | None = None
    sources: list[SourceDocument] = msgspec.field(default_factory=list)


def _page(call: Call, workers: list[Worker], cursor: str | None) -> Answer:
    return Answer(Workers(workers=workers, next=cursor, sources=described_sources(call.system)))


def _merged_page(call: Call, replies: Replies) -> Answer:
    merged = merge_workers({number: one.workers for number, one in documents_of(replies, Workers).items()})
    page, cursor = page_of(merged, lambda worker: worker.id, call.query["limit"], call.query["cursor"])
    return _page(call, [with_source(call.system, worker) for worker in page], cursor)


def _merged_worker(call: Call, replies: Replies) -> Answer:
    reports = documents_of(replies, Worker)
    if not reports:
        return forwarded(next(iter(replies.values())))
    return Answer(with_source(call.system, merge_worker(reports)))


@read(
    "workers",
    Workers,
    query=paged(10_000, 10_000, "most workers to return", watch=True),
    watch=Watch("workers", "id"),
    problems={410: "the worker that the cursor names has left the fleet"},
    versioned=True,
    processes=OverProcesses(_merged_page, lambda *_: {}),
)
async def list_workers(call: Call) -> Answer:
    """All workers: state, models, view of the cache, load, learned speed, predicted against reported cached tokens."""
    endpoints, cursor = page_of(
        call.process.fleet.endpoints, lambda endpoint: endpoint.id, call.query["limit"], call.query["cursor"]
    )
    return _page(call, describe_workers(call.process, endpoints), cursor)


@read("workers/{id}", Worker, problems=_UNKNOWN, versioned=True, processes=OverProcesses(_merged_worker))
async def get_worker(call: Call) -> Answer:
    """One worker."""
    endpoint = call.process.fleet.get(call.path["id"])
    if endpoint is None:
        raise changes.unknown_worker(call.path["id"])
    return Answer(describe_workers(call.process, (endpoint,))[0])


@change(
    "POST",
    "workers",
    takes=NewWorker,
    gives=Worker,
    status=HTTPStatus.CREATED,
    problems={409: "the worker is in the fleet already"},
)
async def add_worker(call: Call) -> Answer:
    """Add a worker. It takes requests after its first successful probe."""
    wanted: NewWorker = call.body
    worker = WorkerConfig(**{name: getattr(wanted, name) for name in NewWorker.__struct_fields__})
    found = [f"{'.'.join(map(str, path))}: {problem}; {fix}" for path, problem, fix in worker_findings(worker, ())]
    if found:
        raise invalid("\n".join(found))
    name = worker_id(worker)
    outcome = await changes.make(call, edits.add_worker(worker), f"added worker {name}")
    answer = await changes.answered(call, outcome, get_worker, {"id": name})
    if call.dry_run:
        return answer
    headers = {**answer.headers, "location": f"/admin/v1/workers/{quote(name, safe='')}"}
    return replace(answer, status=HTTPStatus.CREATED, headers=headers)


@change("PATCH", "workers/{id}", takes=WorkerChange, gives=Worker, problems=_UNKNOWN)
async def change_worker(call: Call) -> Answer:
    """Change settings of a worker in place, by a merge patch. Its requests continue."""
    name, patch = call.path["id"], msgspec.to_builtins(call.body)
    try:
        outcome = await changes.make(call, edits.change_worker(name, patch), f"changed worker {name}")
    except msgspec.ValidationError as error:
        raise invalid(f"the worker would not be valid: {error}{fix_of(str(error), WorkerConfig)}") from None
    return await changes.answered(call, outcome, get_worker, call.path)


@change("DELETE", "workers/{id}", problems=_UNKNOWN)
async def remove_worker(call: Call) -> Answer:
    """Remove a worker at once. Started answers run to their end, other requests move. To wait, drain it first."""
    name = call.path["id"]
    return await changes.answered(call, await changes.make(call, edits.remove_worker(name), f"removed worker {name}"))


_MIGRATE_AFTER = Query(
    "migrate_after_s",
    0,
    86_400,
    "seconds after which answers in progress move to other workers, on routes with migration; default: the route's "
    "drain_after_s",
)


def _set_maintenance(verb: str, until: str, problem: str, *more: Query) -> Callable[[Handle], Operation]:
    wait_s = Query("wait_s", 0, 3_600, f"seconds to wait until {until}; default: do not wait")
    problems = {409: problem, **_UNKNOWN, **_WRONG_QUERY}
    return change(
        "POST",
        f"workers/{{id}}/{verb}",
        role=Role.OPERATE,
        gives=Worker,
        query=(wait_s, *more, DRY_RUN),
        problems=problems,
    )


@_set_maintenance(
    "drain",
    "no request is at the worker",
    "requests are still there after wait_s; the worker stays drained",
    _MIGRATE_AFTER,
)
async def drain_worker(call: Call) -> Answer:
    """Send a worker no new requests; with wait_s, answer once no request is there. Idempotent."""
    name, wait_s = call.path["id"], call.query["wait_s"]
    outcome = await changes.make(
        call, edits.set_maintenance(name, True, call.query["migrate_after_s"] or None), f"drained worker {name}"
    )
    if wait_s and not call.dry_run:
        now = await _wait(call.system, name, wait_s, lambda now: now.quiet or not now.draining)
        if now is not None and not now.draining:
            raise AdminError(HTTPStatus.CONFLICT, "undrained", f"{name} was undrained meanwhile")
        if now is not None and not now.quiet:
            detail = (
                f"{now.in_flight} requests are at {name} after {wait_s} s; it stays drained; ask again to wait longer"
            )
            raise AdminError(HTTPStatus.CONFLICT, "worker_busy", detail)
    return await changes.answered(call, outcome, get_worker, call.path)


@_set_maintenance("undrain", "the worker is ready", "it is not ready after wait_s; it will take requests once it is")
async def undrain_worker(call: Call) -> Answer:
    """Send a drained worker requests again; with wait_s, answer once it takes them. Idempotent."""
    name, wait_s = call.path["id"], call.query["wait_s"]
    outcome = await changes.make(call, edits.set_maintenance(name, False), f"undrained worker {name}")
    if wait_s and not call.dry_run:
        now = await _wait(call.system, name, wait_s, lambda now: now.state in SERVING)
        if now is not None and now.state not in SERVING:
            detail = f"{name} is {now.state} after {wait_s} s ({now.reason}); it takes requests once ready"
            raise AdminError(HTTPStatus.CONFLICT, "worker_not_ready", detail)
    return await changes.answered(call, outcome, get_worker, call.path)


async def _wait(
    system: AdminView, worker: str, wait_s: float, settled: Callable[[WorkerNow], bool]
) -> WorkerNow | None:
    """Return the worker once it is `settled` or the time is up; None if it has left. Nothing tells that it is empty,
    so this polls.

    A process that is about to take over may not know of a drain and may place requests. So no wait ends before the
    takeover has.

    Raises:
        AdminError: another process has taken over: what this one sees of the worker says nothing any more.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + wait_s
    while True:
        now = await system.now_at(worker)
        if system.takeover_state is TakeoverState.DONE:
            raise handed_over()
        if now is None or settled(now) or loop.time() >= end_s:
            return now
        await asyncio.sleep(_LOOK_S)

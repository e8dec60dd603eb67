"""The admin API of several processes: the same operations as for one process, each answered for all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from backends.worker import parse_endpoint
from router.admin import documents, health, routes
from router.admin.decisions import LogPlace
from router.admin.operations import Answer, Call, Operation
from router.admin.paging import page_of
from router.admin.problems import MEDIA_TYPE, AdminError
from router.admin.table import OPERATIONS
from router.admin.workers import configured, still_busy, still_not_ready
from router.config.model import PolicyConfig, WorkerConfig
from router.placement.health import SERVING
from router.process.children.aggregate import merge_worker, merge_workers
from router.process.children.changes import Change, Changes, Child, no_process
from router.process.children.child_client import (
    ChildClient,
    ChildReply,
    ChildRequest,
    NoReplyError,
    ask_all,
    ask_each,
)
from router.process.children.decision_logs import cursor_for, merge_logs
from router.process.children.desired_state import DesiredState
from router.process.children.metric_totals import MetricTotals
from router.telemetry.snapshot import page

Handler = Callable[[Operation, Call], Awaitable[Answer]]

_LOOK_S = 0.05
"""Interval between two polls while a call waits."""


class SupervisorState(Protocol):
    """The parts of the supervisor that its admin port reads."""

    @property
    def children(self) -> Sequence[Child]: ...
    @property
    def changes(self) -> Changes: ...
    @property
    def desired_state(self) -> DesiredState: ...
    @property
    def totals(self) -> MetricTotals: ...
    @property
    def accepting(self) -> bool: ...


def operations_for_all(supervisor: SupervisorState) -> list[Operation]:
    """Return the operations of the table, each of which asks the child processes.

    A read without a handler here is answered by the first child that replies. A change needs a handler.
    """
    request = _AllChildren(supervisor)
    named: dict[str, Handler] = {
        "live": request.live,
        "ready": request.ready,
        "metrics": request.metrics,
        "list_workers": request.list_workers,
        "get_worker": request.worker,
        "add_worker": request.add_worker,
        "remove_worker": request.remove_worker,
        "drain_worker": request.drain,
        "undrain_worker": request.drain,
        "set_policy": request.set_policy,
        "explain": request.first,
        "list_decisions": request.decisions,
        "list_audit": request.local,
        "get_config": request.config,
        "list_routes": request.own_routes,
        "get_route": request.own_route,
        "compare_shadows": request.shadows,
    }
    reads = {operation.name: request.first for operation in OPERATIONS if operation.method == "GET"}
    handlers = {**reads, **named}
    return [_bound(operation, handlers[operation.name]) for operation in OPERATIONS]


def _bound(operation: Operation, handler: Handler) -> Operation:
    async def handle(call: Call) -> Answer:
        return await handler(operation, call)

    return replace(operation, handle=handle)


class _AllChildren:
    def __init__(self, supervisor: SupervisorState) -> None:
        self._supervisor = supervisor

    # reads

    async def live(self, _: Operation, call: Call) -> Answer:
        """Answer for the supervisor's own event loop."""
        return await health.live(call)

    async def local(self, operation: Operation, call: Call) -> Answer:
        """Answer from the supervisor's own state."""
        return await operation.handle(call)

    async def config(self, _: Operation, call: Call) -> Answer:
        """Return the settings that the supervisor was started with."""
        return await health.config(call)

    async def own_routes(self, _: Operation, call: Call) -> Answer:
        """Return the routes with their whole limits, which the processes share out."""
        return await routes.list_all(call)

    async def own_route(self, _: Operation, call: Call) -> Answer:
        """Return one route with its whole limits."""
        return await routes.show(call)

    async def shadows(self, operation: Operation, call: Call) -> Answer:
        """Return the shadow policies of one route, with the sums of all processes."""
        answers = list((await self._all(operation, call)).values())
        found = [msgspec.json.decode(one.content, type=documents.ShadowComparison) for one in answers if one.is_success]
        if not found:
            return _forwarded(answers[0])
        for other in found[1:]:
            for mine, theirs in zip(found[0].shadows, other.shadows, strict=True):
                mine.totals.add(theirs.totals)
        found[0].shadows = [routes.compared(shadow.name, shadow.totals) for shadow in found[0].shadows]
        return Answer(found[0])

    async def ready(self, operation: Operation, call: Call) -> Answer:
        """Answer 200 if at least one process can serve requests."""
        if not self._supervisor.accepting:
            raise AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", "a shutdown has begun")
        answers = await ask_all(self._clients(), _child_request(operation, call))
        if not answers:
            raise AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", "no process serves yet")
        ready = [answer for answer in answers.values() if answer.is_success]
        if not ready:
            return _forwarded(next(iter(answers.values())))
        document = msgspec.json.decode(ready[0].content, type=documents.Ready)
        document.processes, document.processes_ready = len(self._supervisor.children), len(ready)
        return Answer(document)

    async def metrics(self, operation: Operation, call: Call) -> Answer:
        """Return the metrics of all processes, merged."""
        text, media_type = page(await self._supervisor.totals.snapshot(self._clients()))
        return Answer(text, media_type=media_type)

    async def list_workers(self, operation: Operation, call: Call) -> Answer:
        """Return one page, merged from all processes."""
        answers = await ask_all(self._clients(), ChildRequest("GET", operation.path))
        if not answers:
            raise no_process()
        lists = {number: msgspec.json.decode(a.content, type=documents.Workers) for number, a in _successful(answers)}
        merged = merge_workers({number: each.workers for number, each in lists.items()})
        page, cursor = page_of(merged, lambda worker: worker.id, call.query["limit"], call.query["cursor"])
        return Answer(documents.Workers(workers=list(page), next=cursor))

    async def worker(self, operation: Operation, call: Call) -> Answer:
        """Return one worker, merged from all processes."""
        return _one_worker(await self._all(operation, call))

    async def decisions(self, operation: Operation, call: Call) -> Answer:
        """Return one page of the decision logs of all processes, newest first."""
        request, place = _child_request(operation, call), LogPlace.of_cursor(call.query["cursor"])
        requests = [
            (client, request._replace(query={**request.query, **cursor_for(client.number, place)}))
            for client in self._clients()
        ]
        answers = await ask_each(requests)
        if not answers:
            raise no_process()
        logs = {number: msgspec.json.decode(answer.content) for number, answer in _successful(answers)}
        return Answer(merge_logs(logs, call.query["limit"]))

    async def first(self, operation: Operation, call: Call) -> Answer:
        """Return the reply of the first process that answers."""
        for client in self._clients():
            try:
                return _forwarded(await client.ask(_child_request(operation, call)))
            except NoReplyError:
                continue
        raise no_process()

    # changes

    async def add_worker(self, operation: Operation, call: Call) -> Answer:
        wanted: documents.NewWorker = call.body
        worker = configured(wanted)

        def inverse() -> ChildRequest | None:
            try:
                return ChildRequest("DELETE", _worker_path(parse_endpoint(worker.url).authority))
            except ValueError:  # the first process refuses it
                return None

        change = Change(_child_request(operation, call), inverse(), lambda: self._supervisor.desired_state.add(worker))
        return _one_worker(await self._supervisor.changes.make(lambda: change))

    async def remove_worker(self, operation: Operation, call: Call) -> Answer:
        desired_state, worker_id = self._supervisor.desired_state, call.path["id"]

        def prepare() -> Change:
            known = desired_state.workers.get(worker_id)
            back = ChildRequest("POST", "/admin/v1/workers", body=_new_worker(known)) if known is not None else None
            return Change(_child_request(operation, call), back, lambda: desired_state.remove(worker_id))

        answers = await self._supervisor.changes.make(prepare)
        return _forwarded(next(iter(answers.values())))

    async def drain(self, operation: Operation, call: Call) -> Answer:
        """Drain or undrain in every process. The inverse request is sent only if the state really changed."""
        drained, worker_id = self._supervisor.desired_state.drained, call.path["id"]
        drains = operation.name == "drain_worker"

        def prepare() -> Change:
            changes = drains is not (worker_id in drained)
            other = "undrain" if drains else "drain"
            request = _child_request(operation, call)._replace(
                query={}
            )  # the supervisor waits, not the child, because a change must be quick
            back = ChildRequest("POST", f"{_worker_path(worker_id)}/{other}") if changes else request
            note = (lambda: drained.add(worker_id)) if drains else (lambda: drained.discard(worker_id))
            return Change(request, back, note)

        answer = _one_worker(await self._supervisor.changes.make(prepare))
        wait_s = call.query["wait_s"]
        if not wait_s or answer.status is not HTTPStatus.OK:
            return answer
        return await (self._drained if drains else self._undrained)(worker_id, wait_s)

    async def _drained(self, worker_id: str, wait_s: int) -> Answer:
        answer, worker = await self._watch(
            worker_id, wait_s, lambda each: each.state != "draining" or not each.in_flight
        )
        if worker is not None and worker.state != "draining":
            raise AdminError(HTTPStatus.CONFLICT, "undrained", f"{worker_id} was undrained meanwhile")
        if worker is not None and worker.in_flight:
            raise still_busy(worker_id, worker.in_flight, wait_s)
        return answer

    async def _undrained(self, worker_id: str, wait_s: int) -> Answer:
        answer, worker = await self._watch(worker_id, wait_s, lambda each: each.state in SERVING)
        if worker is not None and worker.state not in SERVING:
            raise still_not_ready(worker_id, worker.state, worker.reason, wait_s)
        return answer

    async def _watch(
        self, worker_id: str, wait_s: int, settled: Callable[[documents.Worker], bool]
    ) -> tuple[Answer, documents.Worker | None]:
        """Return the merged worker once it is `settled` or the time is up; None if the worker has left."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + wait_s
        while True:
            answers = await ask_all(self._clients(), ChildRequest("GET", _worker_path(worker_id)))
            answer = _one_worker(answers) if answers else None
            if answer is None:
                raise no_process()
            worker = answer.content if isinstance(answer.content, documents.Worker) else None
            if worker is None or settled(worker) or loop.time() >= end_s:
                return answer, worker
            await asyncio.sleep(_LOOK_S)

    async def set_policy(self, operation: Operation, call: Call) -> Answer:
        desired_state, wanted = self._supervisor.desired_state, call.body

        def prepare() -> Change:
            before = desired_state.policy
            back = msgspec.json.encode({"name": before.name, "params": before.params})
            chosen = PolicyConfig(name=wanted.name, params=wanted.params, seed=before.seed)
            request = _child_request(operation, call)
            return Change(request, request._replace(body=back), lambda: desired_state.set_policy(chosen))

        answers = await self._supervisor.changes.make(prepare)
        return _forwarded(next(iter(answers.values())))

    # helpers

    def _clients(self) -> list[ChildClient]:
        return [child.client for child in self._supervisor.children if child.client is not None]

    async def _all(self, operation: Operation, call: Call) -> dict[int, ChildReply]:
        answers = await ask_all(self._clients(), _child_request(operation, call))
        if not answers:
            raise no_process()
        return answers


def _child_request(operation: Operation, call: Call) -> ChildRequest:
    path = operation.path
    for name, value in call.path.items():
        path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
    body = msgspec.json.encode(call.body) if operation.takes is not None else None
    query = {name: value for name, value in call.query.items() if value is not None}
    return ChildRequest(operation.method, path, query, body)


def _worker_path(worker_id: str) -> str:
    return f"/admin/v1/workers/{quote(worker_id, safe='')}"


def _new_worker(worker: WorkerConfig) -> bytes:
    wanted = documents.NewWorker(
        url=worker.url, kv_events=worker.kv_events, api_key=worker.api_key, labels=worker.labels
    )
    return msgspec.json.encode(wanted)


def _successful(answers: dict[int, ChildReply]) -> Iterable[tuple[int, ChildReply]]:
    return ((number, answer) for number, answer in answers.items() if answer.is_success)


def _one_worker(answers: dict[int, ChildReply]) -> Answer:
    successful = dict(_successful(answers))
    if not successful:
        return _forwarded(next(iter(answers.values())))
    first = next(iter(successful.values()))
    reports = {
        number: msgspec.json.decode(answer.content, type=documents.Worker) for number, answer in successful.items()
    }
    return Answer(merge_worker(reports), HTTPStatus(first.status_code), _forwarded_headers(first))


def _forwarded(answer: ChildReply) -> Answer:
    status = HTTPStatus(answer.status_code)
    content: Any = answer.content or None
    media_type = "application/json" if answer.is_success else MEDIA_TYPE
    return Answer(content, status, _forwarded_headers(answer), media_type)


def _forwarded_headers(answer: ChildReply) -> dict[str, str]:
    return {name: answer.headers[name] for name in ("location", "retry-after") if name in answer.headers}

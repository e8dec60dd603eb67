"""The admin API of several processes: the same operations as for one process, each answered for all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from backends.foreign_json import read_json
from router.admin import changes, documents
from router.admin.documents import WhatIfDocument
from router.admin.fleet import fleet_rows
from router.admin.fleet.replicas import is_alone
from router.admin.fleet.sources import described_sources, failing, with_source
from router.admin.fleet.workers import still_busy, still_not_ready
from router.admin.http.paging import page_of
from router.admin.http.problems import MEDIA_TYPE, AdminError, no_process
from router.admin.observe import prefixes, what_if
from router.admin.observe.decisions import LogPlace
from router.admin.operations import Answer, Call, Operation
from router.admin.settings import routes
from router.admin.settings.named_settings import NAMED_OPERATIONS
from router.admin.table import OPERATIONS
from router.placement.fleet.health import SERVING
from router.process.children.aggregate import merge_worker, merge_workers
from router.process.children.child_client import (
    ChildClient,
    ChildReply,
    ChildRequest,
    NoReplyError,
    ask_all,
    ask_each,
)
from router.process.children.child_process import ChildProcess
from router.process.children.decision_logs import cursor_for, merge_logs
from router.process.children.metric_totals import MetricTotals
from router.telemetry.snapshot import page

Handler = Callable[[Operation, Call], Awaitable[Answer]]

_LOOK_S = 0.05
"""Interval between two polls while a call waits."""
_WHAT_IF_S = 60.0
"""A process makes a thousand decisions again beside its traffic."""


class SupervisorState(Protocol):
    """The parts of the supervisor that its admin port reads."""

    @property
    def children(self) -> Sequence[ChildProcess]: ...
    @property
    def totals(self) -> MetricTotals: ...
    @property
    def accepting(self) -> bool: ...
    async def correct(self) -> None:
        """Bring processes that run another version of the desired state to the present one."""


def operations_for_all(supervisor: SupervisorState) -> list[Operation]:
    """Return the operations of the table, each of which asks the child processes.

    A read without a handler here is answered by the first child that replies. A change needs a handler, which changes
    the desired state here and not in a child.
    """
    request = _AggregatedOperations(supervisor)
    named: dict[str, Handler] = {
        **dict.fromkeys(("live", "get_config"), _here),
        "ready": request.ready,
        "metrics": request.metrics,
        "list_workers": request.list_workers,
        "get_worker": request.worker,
        "list_fleet": request.fleet,
        "list_prefixes": request.prefixes,
        "add_worker": request.add_worker,
        "change_worker": request.change_worker,
        "remove_worker": request.remove_worker,
        "drain_worker": request.drain,
        "undrain_worker": request.drain,
        **dict.fromkeys(("register_worker", "deregister_worker"), _here),
        **dict.fromkeys(("pause_worker", "resume_worker", "reset_prefix_cache"), _here),
        **dict.fromkeys(("load_lora", "unload_lora", "operate_workers"), _here),
        "get_policy": request.policy,
        "set_policy": request.set_policy,
        **dict.fromkeys(("reload", "get_desired_state", "list_revisions", "get_revision", "restore_revision"), _here),
        "explain": request.first,
        "what_if": request.what_if,
        "list_decisions": request.decisions,
        **dict.fromkeys(("list_audit", "whoami", "show_traffic", "diagnose"), _here),
        **dict.fromkeys(("get_log_level", "list_replicas"), _here),
        "set_log_level": request.set_log_level,
        **dict.fromkeys(("list_policies", "put_policy", "remove_policy"), _here),
        **dict.fromkeys(("list_routes", "get_route", "set_routes"), _here),
        "compare_shadows": request.shadows,
        **dict.fromkeys((operation.name for operation in NAMED_OPERATIONS), _here),
    }
    reads = {operation.name: request.first for operation in OPERATIONS if operation.method == "GET"}
    handlers = {**reads, **named}
    return [_bound(operation, handlers[operation.name]) for operation in OPERATIONS]


async def _here(operation: Operation, call: Call) -> Answer:
    """Answer in the supervisor, which has the whole settings, the desired state, its history and the audit."""
    return await operation.handle(call)


def _bound(operation: Operation, handler: Handler) -> Operation:
    async def handle(call: Call) -> Answer:
        return await handler(operation, call)

    return replace(operation, handle=handle)


class _AggregatedOperations:
    def __init__(self, supervisor: SupervisorState) -> None:
        self._supervisor = supervisor

    # reads

    async def shadows(self, operation: Operation, call: Call) -> Answer:
        """Return the shadow policies of one route, with the sums of all processes."""
        answers = list((await self._all(operation, call)).values())
        found = [read_json(one.content, documents.ShadowComparison) for one in answers if one.is_success]
        if not found:
            return _forwarded(answers[0])
        for other in found[1:]:
            for mine, theirs in zip(found[0].shadows, other.shadows, strict=True):
                mine.totals.add(theirs.totals)
        found[0].shadows = [routes.compared(shadow.name, shadow.totals) for shadow in found[0].shadows]
        return Answer(found[0])

    async def what_if(self, operation: Operation, call: Call) -> Answer:
        """Return what another policy would have chosen at the latest decisions of all processes."""
        answers = list((await ask_all(self._clients(), _child_request(operation, call), _WHAT_IF_S)).values())
        if not answers:
            raise no_process()
        refused = [one for one in answers if not one.is_success]
        if refused:
            return _forwarded(refused[0])
        return Answer(what_if.merged([read_json(one.content, WhatIfDocument) for one in answers]))

    async def ready(self, operation: Operation, call: Call) -> Answer:
        """Answer 200 if at least one process can serve requests."""
        if not self._supervisor.accepting:
            raise AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", "a shutdown has begun")
        answers = await ask_all(self._clients(), _child_request(operation, call))
        if not answers:
            raise AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", "no process serves yet")
        ready = [answer for answer in answers.values() if answer.is_success]
        if not ready:
            raise _not_ready(next(iter(answers.values())), call)
        document = read_json(ready[0].content, documents.Ready)
        document.processes, document.processes_ready = len(self._supervisor.children), len(ready)
        document.alone = is_alone(call)
        document.sources = described_sources(call.system) if call.query["verbose"] else None
        return Answer(document)

    async def metrics(self, operation: Operation, call: Call) -> Answer:
        text, media_type = page(await self._supervisor.totals.snapshot(self._clients()), call.accept)
        return Answer(text, media_type=media_type)

    async def list_workers(self, operation: Operation, call: Call) -> Answer:
        """Return one page, merged from all processes."""
        answers = await self._ask_all(ChildRequest("GET", operation.path))
        lists = {number: read_json(a.content, documents.Workers) for number, a in _successful(answers)}
        merged = merge_workers({number: each.workers for number, each in lists.items()})
        page, cursor = page_of(merged, lambda worker: worker.id, call.query["limit"], call.query["cursor"])
        workers = [with_source(call.system, worker) for worker in page]
        shown = documents.Workers(workers=workers, next=cursor, sources=described_sources(call.system))
        return changes.versioned(call, Answer(shown))

    async def fleet(self, operation: Operation, call: Call) -> Answer:
        """Return one page of the candidates, merged from all processes."""
        answers = await self._ask_all(ChildRequest("GET", operation.path))
        fleets = [read_json(one.content, documents.FleetOverview).rows for _, one in _successful(answers)]
        rows, cursor = page_of(fleet_rows.merged(fleets), lambda row: row.id, call.query["limit"], call.query["cursor"])
        return Answer(documents.FleetOverview(rows=list(rows), next=cursor))

    async def prefixes(self, operation: Operation, call: Call) -> Answer:
        answers = await self._ask_all(ChildRequest("GET", operation.path, {"limit": 100}))
        found = [read_json(one.content, documents.Prefixes).prefixes for _, one in _successful(answers)]
        return Answer(documents.Prefixes(prefixes=prefixes.merged(found, call.query["limit"])))

    async def worker(self, operation: Operation, call: Call) -> Answer:
        answer = _one_worker(await self._all(operation, call))
        if isinstance(answer.content, documents.Worker):
            answer = replace(answer, content=with_source(call.system, answer.content))
        return changes.versioned(call, answer)

    async def policy(self, operation: Operation, call: Call) -> Answer:
        """Return the policy, with the statistics of the first process that answers."""
        return changes.versioned(call, await self.first(operation, call))

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
        logs = {number: read_json(answer.content) for number, answer in _successful(answers)}
        return Answer(merge_logs(logs, call.query["limit"]))

    async def first(self, operation: Operation, call: Call) -> Answer:
        return await self._first(_child_request(operation, call))

    # changes

    async def add_worker(self, _: Operation, call: Call) -> Answer:
        name, outcome = await changes.add_worker(call)
        if call.dry_run:
            return changes.dry(outcome)
        shown = await self._worker(name)
        answer = replace(shown, status=HTTPStatus.CREATED, headers={"location": changes.location_of(name)})
        return changes.done(outcome, answer)

    async def change_worker(self, _: Operation, call: Call) -> Answer:
        outcome = await changes.change_worker(call)
        if call.dry_run:
            return changes.dry(outcome)
        return changes.done(outcome, await self._worker(call.path["id"]))

    async def remove_worker(self, _: Operation, call: Call) -> Answer:
        outcome = await changes.remove_worker(call)
        return changes.dry(outcome) if call.dry_run else changes.done(outcome, Answer(None, HTTPStatus.NO_CONTENT))

    async def drain(self, operation: Operation, call: Call) -> Answer:
        """Drain or undrain in every process. The supervisor waits, and not a child, because a change must be quick."""
        drains, name, wait_s = operation.name == "drain_worker", call.path["id"], call.query["wait_s"]
        outcome = await changes.set_maintenance(call, drains)
        if call.dry_run:
            return changes.dry(outcome)
        if not wait_s:
            return changes.done(outcome, await self._worker(name))
        return changes.done(outcome, await (self._drained if drains else self._undrained)(name, wait_s))

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
            answer = await self._worker(worker_id)
            worker = answer.content if isinstance(answer.content, documents.Worker) else None
            if worker is None or settled(worker) or loop.time() >= end_s:
                return answer, worker
            await asyncio.sleep(_LOOK_S)

    async def set_policy(self, _: Operation, call: Call) -> Answer:
        outcome = await changes.set_policy(call)
        if call.dry_run:
            return changes.dry(outcome)
        return changes.done(outcome, await self._first(ChildRequest("GET", "/admin/v1/policy")))

    async def set_log_level(self, operation: Operation, call: Call) -> Answer:
        """Change the level here and in every process. A process that starts later takes it from here."""
        async with call.system.control.lock:
            await asyncio.gather(*(child.settled.wait() for child in self._supervisor.children))
            answer = await operation.handle(call)
            clients = self._clients()
            answers = await ask_all(clients, _child_request(operation, call))
        silent = [str(client.number) for client in clients if client.number not in answers]
        if silent:
            detail = f"process {', '.join(silent)} did not answer and keeps its level; ask again"
            raise AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "no_process", detail, headers={"retry-after": "1"})
        return answer

    # helpers

    def _clients(self) -> list[ChildClient]:
        return [child.client for child in self._supervisor.children if child.client is not None]

    async def _all(self, operation: Operation, call: Call) -> dict[int, ChildReply]:
        return await self._ask_all(_child_request(operation, call))

    async def _ask_all(self, request: ChildRequest) -> dict[int, ChildReply]:
        answers = await ask_all(self._clients(), request)
        if not answers:
            raise no_process()
        await self._supervisor.correct()
        return answers

    async def _worker(self, name: str) -> Answer:
        return _one_worker(await self._ask_all(ChildRequest("GET", changes.location_of(name))))

    async def _first(self, request: ChildRequest) -> Answer:
        for client in self._clients():
            try:
                return _forwarded(await client.ask(request))
            except NoReplyError:
                continue
        raise no_process()


def _child_request(operation: Operation, call: Call) -> ChildRequest:
    path = operation.path
    for name, value in call.path.items():
        path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
    body = msgspec.json.encode(call.body) if operation.takes is not None else None
    query = {name: value for name, value in call.query.items() if value is not None}
    return ChildRequest(operation.method, path, query, body)


def _successful(answers: dict[int, ChildReply]) -> Iterable[tuple[int, ChildReply]]:
    return ((number, answer) for number, answer in answers.items() if answer.is_success)


def _one_worker(answers: dict[int, ChildReply]) -> Answer:
    successful = dict(_successful(answers))
    if not successful:
        return _forwarded(next(iter(answers.values())))
    first = next(iter(successful.values()))
    reports = {number: read_json(answer.content, documents.Worker) for number, answer in successful.items()}
    return Answer(merge_worker(reports), HTTPStatus(first.status_code), _forwarded_headers(first))


def _not_ready(answer: ChildReply, call: Call) -> AdminError:
    detail = f"{answer.detail}{failing(call.system)}"
    return AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", detail, headers={"retry-after": "1"})


def _forwarded(answer: ChildReply) -> Answer:
    status = HTTPStatus(answer.status_code)
    content: Any = answer.content or None
    media_type = "application/json" if answer.is_success else MEDIA_TYPE
    return Answer(content, status, _forwarded_headers(answer), media_type)


def _forwarded_headers(answer: ChildReply) -> dict[str, str]:
    return {name: answer.headers[name] for name in ("location", "retry-after") if name in answer.headers}

"""Pause and resume workers, reset their caches, and load adapters: by id, or all that a selector names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec

from backends.vllm.operations import OperationName, WorkerOperation
from router.admin import changes
from router.admin.documents import Body, Shape
from router.admin.http.parameters import TruthQuery
from router.admin.http.problems import AdminError, invalid, not_found
from router.admin.operations import Answer, Call, operation
from router.config.model import WorkerConfig
from router.control.state import edits
from router.security.token import Role
from router.workers.operations import WorkerOutcome

SETTING = "worker_operations"
_NOT_ALLOWED = (
    "the Host or Origin header is not allowed, the token's role is too low (admin, but for a pause or resume of "
    "`workers`), or the setting worker_operations does not have the operation"
)
_DRY_RUN = TruthQuery("dry_run", "answer with the workers that would be asked, and ask none")


class SelectedOperation(Body):
    """An operation on `workers` by their ids; on those that serve `model`, have `labels` and the role `role`; or `all`.

    `lora_name` and `lora_path` are for adapters; the path is one on the workers' hosts. A pause waits up to `wait_s`
    for the requests that run on a worker.
    """

    operation: OperationName
    workers: list[str] | None = None
    model: str | None = None
    labels: dict[str, str] | None = None
    role: str | None = None
    all: bool = False
    lora_name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    lora_path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)] | None = None
    wait_s: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 60


class WorkerResult(Shape):
    """What became of an operation on one worker. `detail` says why it is not done.

    `outcome` is done, refused, unknown (the worker gave no answer, and may have done it) or dry_run.
    """

    worker: str
    outcome: Literal["done", "refused", "unknown", "dry_run"]
    name: str | None = None
    detail: str | None = None


class WorkerResults(Shape):
    """The result of an operation on each worker, in the order in which they were added."""

    operation: OperationName
    results: list[WorkerResult]


@operation(
    "POST",
    "/admin/v1/worker-operations",
    role=Role.OPERATE,
    takes=SelectedOperation,
    gives=WorkerResults,
    further=(HTTPStatus.MULTI_STATUS,),
    query=(_DRY_RUN,),
    problems={403: _NOT_ALLOWED, 404: "no worker is selected, or one of `workers` is not there"},
)
async def operate_workers(call: Call) -> Answer:
    """One operation on workers by id, or on all of a model, with labels or of a role. 207: some have not done it."""
    body: SelectedOperation = call.body
    wanted = WorkerOperation(
        operation=body.operation, lora_name=body.lora_name or "", lora_path=body.lora_path or "", wait_s=body.wait_s
    )
    _check(call, wanted, body)
    workers = await _select(call, body)
    if not workers:
        raise not_found("worker that the selector names", "GET /admin/v1/workers lists all")
    results = await _results(call, wanted, workers)
    complete = all(each.outcome in ("done", "dry_run") for each in results.results)
    return Answer(results, HTTPStatus.OK if complete else HTTPStatus.MULTI_STATUS)


def _check(call: Call, wanted: WorkerOperation, body: SelectedOperation) -> None:
    allowed = call.system.config.worker_operations
    if wanted.operation not in allowed:
        may = f"it has {', '.join(allowed)}" if allowed else "it is empty"
        detail = f"{wanted.operation} is not in the setting {SETTING} ({may}); add it there, and restart the gateway"
        raise AdminError(HTTPStatus.FORBIDDEN, "operation_not_allowed", detail)
    light = bool(body.workers) and wanted.operation in ("pause", "resume")
    if call.role is not None and not light and not call.role.includes(Role.ADMIN):
        detail = f"{wanted.operation} needs a token with the role admin; the token {call.who} has the role {call.role}"
        raise AdminError(HTTPStatus.FORBIDDEN, "role_not_allowed", detail)
    if wanted.operation in ("load-lora", "unload-lora") and not wanted.lora_name:
        raise invalid(f"{wanted.operation} needs lora_name")
    if wanted.operation == "load-lora" and not wanted.lora_path:
        raise invalid("load-lora needs lora_path, a path on the workers' hosts")
    named, selected = bool(body.workers), body.model is not None or body.role is not None or bool(body.labels)
    if body.all + named + selected != 1:
        raise invalid("name the workers, or select them by model, labels and role, or write all: true for the fleet")


async def _select(call: Call, body: SelectedOperation) -> list[str]:
    serving = None if body.model is None else await call.system.serving(body.model)
    workers = call.system.control.state.settings.workers
    for name in body.workers or ():
        if name not in workers:
            raise changes.unknown_worker(name)
    if body.workers:
        return list(dict.fromkeys(body.workers))
    return [name for name, worker in workers.items() if (serving is None or name in serving) and _matches(worker, body)]


def _matches(worker: WorkerConfig, body: SelectedOperation) -> bool:
    labels = worker.labels.items()
    return body.role in (None, worker.role) and all(label in labels for label in (body.labels or {}).items())


async def _results(call: Call, wanted: WorkerOperation, workers: Sequence[str]) -> WorkerResults:
    if call.dry_run:
        return _shown(call, wanted, [WorkerResult(worker=worker, outcome="dry_run") for worker in workers])
    run = {"pause": _pause, "resume": _resume}.get(wanted.operation, _run)
    outcomes = await run(call, wanted, workers)
    found = [WorkerResult(worker=each.worker, outcome=each.outcome, detail=each.detail) for each in outcomes]
    return _shown(call, wanted, found)


def _shown(call: Call, wanted: WorkerOperation, results: list[WorkerResult]) -> WorkerResults:
    workers = call.system.control.state.settings.workers
    for each in results:
        each.name = workers[each.worker].name if each.worker in workers else None
    return WorkerResults(operation=wanted.operation, results=results)


async def _run(call: Call, wanted: WorkerOperation, workers: Sequence[str]) -> list[WorkerOutcome]:
    return await call.system.operate(wanted, workers)


async def _pause(call: Call, wanted: WorkerOperation, workers: Sequence[str]) -> list[WorkerOutcome]:
    """Send the workers no new requests, then pause them. A worker that refuses gets requests as before."""
    settings = call.system.control.state.settings.workers
    before = {worker for worker in workers if settings[worker].maintenance}
    await _maintain(call, workers, True, f"paused {_named(workers)}")
    outcomes = await call.system.operate(wanted, workers)
    refused = {each.worker for each in outcomes if each.outcome == "refused"} - before
    if refused:
        await _maintain(call, refused, False, f"undrained {_named(refused)}, which refused to pause")
    return outcomes


async def _resume(call: Call, wanted: WorkerOperation, workers: Sequence[str]) -> list[WorkerOutcome]:
    outcomes = await call.system.operate(wanted, workers)
    done = [each.worker for each in outcomes if each.outcome == "done"]
    if done:
        await _maintain(call, done, False, f"resumed {_named(done)}")
    return outcomes


async def _maintain(call: Call, workers: Collection[str], maintenance: bool, what: str) -> None:
    """Drain or undrain workers. The operation is on them, whatever the state is, so no version of it is needed."""
    await changes.make(replace(call, if_match="*"), edits.set_maintenance_of(workers, maintenance), what)


def _named(workers: Collection[str]) -> str:
    return f"worker {next(iter(workers))}" if len(workers) == 1 else f"{len(workers)} workers"

"""Worker operations of several processes: one process calls the workers, and all follow what has changed there."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backends.foreign_json import read_json
from backends.vllm.operations import WorkerOperation
from router.admin import documents
from router.admin.http.problems import no_process
from router.process.children.child_client import ChildClient, ChildRequest, NoReplyError, ask_all
from router.workers.operations import WorkerOperations, WorkerOutcome

RUN_PATH = "/private/worker-operations/run"
FOLLOW_PATH = "/private/worker-operations/follow"
_MARGIN_S = 5.0


class _Wanted(msgspec.Struct):
    operation: WorkerOperation
    workers: list[str]


def operation_routes(operations: WorkerOperations) -> list[Route]:
    """Return the routes of a child that calls workers, and that follows what another child did."""

    async def run(request: Request) -> Response:
        wanted = read_json(await request.body(), _Wanted)
        outcomes = await operations.run(wanted.operation, wanted.workers)
        return Response(msgspec.json.encode(outcomes), media_type="application/json")

    async def follow(request: Request) -> Response:
        wanted = read_json(await request.body(), _Wanted)
        operations.follow(wanted.operation, wanted.workers)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    return [Route(RUN_PATH, run, methods=["POST"]), Route(FOLLOW_PATH, follow, methods=["POST"])]


async def run_in_one(
    clients: Sequence[ChildClient], wanted: WorkerOperation, workers: Sequence[str]
) -> list[WorkerOutcome]:
    """Let the first process call the workers, and all others follow.

    Raises:
        AdminError: no process serves.
    """
    if not clients:
        raise no_process()
    first, *others = clients
    try:
        reply = await first.ask(_request(RUN_PATH, wanted, workers), wanted.limit_s + _MARGIN_S)
    except NoReplyError as error:
        return [WorkerOutcome(worker, "unknown", str(error)) for worker in workers]
    outcomes = read_json(reply.content, list[WorkerOutcome])
    done = [each.worker for each in outcomes if each.outcome == "done"]
    await ask_all(others, _request(FOLLOW_PATH, wanted, done))
    return outcomes


async def serving_in_one(clients: Sequence[ChildClient], model: str) -> list[str]:
    """Return the workers that serve `model`, as one process knows them.

    Raises:
        AdminError: no process serves.
    """
    for client in clients:
        try:
            reply = await client.ask(ChildRequest("GET", "/admin/v1/workers"))
        except NoReplyError:
            continue
        workers = read_json(reply.content, documents.Workers).workers
        return [worker.id for worker in workers if any(each.id == model for each in worker.models)]
    raise no_process()


def _request(path: str, wanted: WorkerOperation, workers: Sequence[str]) -> ChildRequest:
    return ChildRequest("POST", path, body=msgspec.json.encode(_Wanted(wanted, list(workers))))

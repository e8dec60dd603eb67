"""The admin API of several processes: the operations of one process, each answered for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from router.admin.http.problems import no_process
from router.admin.operations import Answer, Call, Operation, OverProcesses, forwarded
from router.admin.table import OPERATIONS
from router.process.children.all_processes import AllProcesses
from router.process.children.child_client import READ_S, ChildRequest, NoReplyError, ask_each


def operations_for_all(processes: AllProcesses) -> list[Operation]:
    """Return the operations of the table, for the supervisor."""
    return [one if one.processes == "one" else _asking(one, processes) for one in OPERATIONS]


def _asking(operation: Operation, processes: AllProcesses) -> Operation:
    merge = operation.processes

    async def handle(call: Call) -> Answer:
        if isinstance(merge, OverProcesses):
            return await _merged(operation, merge, processes, call)
        for client in processes.clients:
            try:
                return forwarded(await client.ask(_request(operation, call, call.query)))
            except NoReplyError:
                continue
        raise no_process()

    return replace(operation, handle=handle)


async def _merged(operation: Operation, merge: OverProcesses, processes: AllProcesses, call: Call) -> Answer:
    requests = [(client, _request(operation, call, merge.query(call, client.number))) for client in processes.clients]
    replies = await ask_each(requests, merge.limit_s or READ_S)
    if operation.negotiates:
        await processes.correct()
    return merge.answer(call, replies)


def _request(operation: Operation, call: Call, query: Mapping[str, Any]) -> ChildRequest:
    path = operation.path
    for name, value in call.path.items():
        path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
    body = call.raw if operation.takes is not None else None
    return ChildRequest(
        operation.method, path, {name: value for name, value in query.items() if value is not None}, body
    )

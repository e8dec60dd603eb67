"""The admin API of several processes: the operations of one process, each answered for all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from router.admin.http.problems import no_process
from router.admin.operations import Answer, Call, Operation, OverProcesses, forwarded
from router.admin.table import OPERATIONS
from router.process.children.child_client import READ_S, ChildClient, ChildRequest, NoReplyError, ask_all, ask_each
from router.process.children.child_process import ChildProcess
from router.telemetry.logs import Level, set_log_level


class Processes(Protocol):
    """The parts of the supervisor that its admin port asks."""

    @property
    def clients(self) -> Sequence[ChildClient]:
        """Those of the processes that serve."""

    async def correct(self) -> None:
        """Bring processes that run another version of the desired state to the present one."""


def operations_for_all(processes: Processes) -> list[Operation]:
    """Return the operations of the table, for the supervisor."""
    return [one if one.processes == "one" else _asking(one, processes) for one in OPERATIONS]


def _asking(operation: Operation, processes: Processes) -> Operation:
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


async def _merged(operation: Operation, merge: OverProcesses, processes: Processes, call: Call) -> Answer:
    requests = [(client, _request(operation, call, merge.query(call, client.number))) for client in processes.clients]
    replies = await ask_each(requests, merge.limit_s or READ_S)
    if operation.negotiates:
        await processes.correct()
    return merge.answer(call, replies)


def _request(operation: Operation, call: Call, query: Mapping[str, Any]) -> ChildRequest:
    path = operation.path
    for name, value in call.path.items():
        path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
    body = msgspec.json.encode(call.body) if operation.takes is not None else None
    return ChildRequest(
        operation.method, path, {name: value for name, value in query.items() if value is not None}, body
    )


async def log_everywhere(children: Sequence[ChildProcess], level: Level) -> list[int]:
    """Log from another level on, here and in every process. A process that starts later takes the level from here.

    Returns the processes that did not change it.
    """
    await asyncio.gather(*(child.settled.wait() for child in children))
    set_log_level(level)
    clients = [child.client for child in children if child.client is not None]
    replies = await ask_all(
        clients, ChildRequest("PUT", "/admin/v1/log-level", body=msgspec.json.encode({"level": level}))
    )
    return [one.number for one in clients if one.number not in replies or not replies[one.number].is_success]

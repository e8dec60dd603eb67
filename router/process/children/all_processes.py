"""All processes of a gateway, as the admin port of their supervisor sees them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar
from urllib.parse import quote

import msgspec

from backends.foreign_json import read_json
from backends.vllm.operations import WorkerOperation
from router.admin.fleet.merged_workers import merge_worker
from router.admin.fleet.worker_documents import Worker
from router.admin.fleet.workers import Workers
from router.admin.http.problems import no_process
from router.admin.replies import documents_of
from router.admin.system import TakeoverState, WorkerNow
from router.diagnosis import facts, measured
from router.diagnosis.diagnose import Diagnosis
from router.process.children.changes import Changes
from router.process.children.child_client import ChildClient, ChildRequest, NoReplyError, ask_all
from router.process.children.child_process import ChildProcess
from router.process.children.metric_totals import MetricTotals
from router.process.children.private_api import FOLLOW, IN_FLIGHT, KNOWN, METRICS, RUN, WantedOperation
from router.process.control_plane import ControlPlane, ProcessKnows
from router.telemetry.logs import Level, set_log_level
from router.telemetry.snapshot import Snapshot, page
from router.workers.operations import WorkerOutcome

_MARGIN_S = 5.0
T = TypeVar("T")


class AllProcesses:
    """Ask the children that serve, and merge what they answer.

    Satisfies `router.admin.system.AdminView`, and `router.process.control_plane.Processes`.
    """

    takeover_state = TakeoverState.NONE

    def __init__(self, children: Sequence[ChildProcess], changes: Changes, plane: ControlPlane) -> None:
        self.config = plane.config
        self.control = plane.control
        self.discovery = plane.discovery
        self.replica = plane.replica
        self.traffic = plane.traffic
        self.totals = MetricTotals(plane.readings)
        self.accepting = False
        self._children = children
        self._changes = changes
        self._plane = plane

    @property
    def clients(self) -> list[ChildClient]:
        """Those of the processes that serve."""
        return [child.client for child in self._children if child.client is not None]

    @property
    def processes(self) -> int:
        return len(self._children)

    async def correct(self) -> None:
        """Bring processes that run another version of the desired state to the present one."""
        if self._changes.behind(self.control.state):
            async with self.control.lock:
                await self._changes.correct(self.control.state)

    async def metrics(self) -> Snapshot:
        return self.totals.with_latest(await self._answers(METRICS, Snapshot))

    async def exposition(self, accept: str = "") -> tuple[bytes, str]:
        return page(await self.metrics(), accept)

    async def in_flight(self) -> Mapping[str, int] | None:
        """Return the requests at each worker in all processes, or None if one does not say."""
        clients = self.clients
        answers = await self._answers(IN_FLIGHT, dict[str, int])
        return sum(map(Counter, answers.values()), Counter()) if len(answers) == len(clients) else None

    async def known(self) -> ProcessKnows | None:
        parts = await self._answers(KNOWN, ProcessKnows)
        if not parts:
            return None
        return ProcessKnows(
            measured.over_processes([part.measured for part in parts.values()]),
            facts.over_processes({number: part.facts for number, part in parts.items()}),
        )

    async def diagnosis(self) -> Diagnosis | None:
        return await self._plane.diagnosis(self)

    async def _answers(self, path: str, kind: type[T]) -> dict[int, T]:
        """Return the answers by process. Processes without a usable one are left out."""
        found = await ask_all(self.clients, ChildRequest("GET", path))
        return {
            number: msgspec.msgpack.decode(one.content, type=kind) for number, one in found.items() if one.is_success
        }

    async def now_at(self, worker_id: str) -> WorkerNow | None:
        replies = await ask_all(self.clients, ChildRequest("GET", f"/admin/v1/workers/{quote(worker_id, safe='')}"))
        reports = documents_of(replies, Worker)
        await self.correct()
        if not reports:
            return None
        worker = merge_worker(reports)
        draining = worker.state == "draining"
        return WorkerNow(worker.state, worker.reason, draining, worker.in_flight, not worker.in_flight)

    async def operate(self, wanted: WorkerOperation, workers: Sequence[str]) -> list[WorkerOutcome]:
        """Let the first process call the workers, and all others follow what has changed there.

        Raises:
            AdminError: no process serves.
        """
        if not self.clients:
            raise no_process()
        first, *others = self.clients
        try:
            reply = await first.ask(_request(RUN, wanted, workers), wanted.limit_s + _MARGIN_S)
        except NoReplyError as error:
            return [WorkerOutcome(worker, "unknown", str(error)) for worker in workers]
        outcomes = msgspec.msgpack.decode(reply.content, type=list[WorkerOutcome])
        done = [each.worker for each in outcomes if each.outcome == "done"]
        await ask_all(others, _request(FOLLOW, wanted, done))
        return outcomes

    async def serving(self, model: str) -> Collection[str]:
        """Return the workers that serve `model`, as one process knows them.

        Raises:
            AdminError: no process serves.
        """
        for client in self.clients:
            try:
                reply = await client.ask(ChildRequest("GET", "/admin/v1/workers"))
            except NoReplyError:
                continue
            workers = read_json(reply.content, Workers).workers
            return [worker.id for worker in workers if any(each.id == model for each in worker.models)]
        raise no_process()

    async def log_from(self, level: Level) -> Sequence[int]:
        async with self.control.lock:
            return await log_everywhere(self._children, level)


async def log_everywhere(children: Sequence[ChildProcess], level: Level) -> list[int]:
    """Log from another level on, here and in every process. A process that starts later takes the level from here.

    Returns the processes that did not change it.
    """
    await asyncio.gather(*(child.settled.wait() for child in children))
    set_log_level(level)
    clients = [child.client for child in children if child.client is not None]
    body = msgspec.json.encode({"level": level})
    replies = await ask_all(clients, ChildRequest("PUT", "/admin/v1/log-level", body=body))
    return [one.number for one in clients if one.number not in replies or not replies[one.number].is_success]


def _request(path: str, wanted: WorkerOperation, workers: Sequence[str]) -> ChildRequest:
    return ChildRequest("POST", path, body=msgspec.json.encode(WantedOperation(wanted, list(workers))))

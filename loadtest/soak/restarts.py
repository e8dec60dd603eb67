"""Rolling restarts: gateways take over from each other, and workers are drained, replaced and undrained."""

from __future__ import annotations

import asyncio

from loadtest.soak.fleet import Admin, Fleet

DRAIN_WAIT_S = 60
READY_WAIT_S = 30
GATEWAY, WORKER = "gateway_restart", "worker_restart"


class Restarts:
    """Replaces `gateways` gateways, one after the other, and meanwhile `workers` workers. `counts` has those done."""

    def __init__(self, fleet: Fleet, admin: Admin, gateways: int, workers: int) -> None:
        self._fleet = fleet
        self._admin = admin
        self._gateways = gateways
        self._workers = workers
        self.counts = {GATEWAY: 0, WORKER: 0}

    async def run(self) -> None:
        """Carry out all restarts.

        Raises:
            ExceptionGroup: of StartError if a process did not start or did not end with 0, and of httpx.HTTPError if
                the admin port refused a drain or did not answer.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._replace_gateways(tasks))
            tasks.create_task(self._replace_workers())

    async def _replace_gateways(self, tasks: asyncio.TaskGroup) -> None:
        for _ in range(self._gateways):
            old = await asyncio.to_thread(self._fleet.take_over)
            tasks.create_task(asyncio.to_thread(self._fleet.end, old))
            self.counts[GATEWAY] += 1

    async def _replace_workers(self) -> None:
        workers = self._fleet.workers
        for number in range(self._workers):
            worker = workers[number % len(workers)]
            await self._admin.drain(worker.id, True, DRAIN_WAIT_S)
            await asyncio.to_thread(self._fleet.replace, worker)
            await self._admin.drain(worker.id, False, READY_WAIT_S)
            self.counts[WORKER] += 1

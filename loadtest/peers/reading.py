"""The machine's load during a run: counters before and after it, and the delay of the load generator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from loadtest.peers.cpu import machine_cpu_s, tree_cpu_s
from loadtest.peers.figures import Usage
from loadtest.peers.workers import Counters, Worker, read_counters

LAG_STEP_S = 0.01


@dataclass(frozen=True, slots=True)
class Reading:
    now_s: float
    router_cpu_s: float
    client_cpu_s: float
    machine_cpu_s: tuple[float, float]
    workers: tuple[Counters, ...]

    @classmethod
    def take(cls, workers: Sequence[Worker], router_pid: int) -> Reading:
        counters = tuple(read_counters(worker) for worker in workers)
        return cls(time.monotonic(), tree_cpu_s(router_pid), time.process_time(), machine_cpu_s(), counters)

    def since(self, then: Reading, client_lag_p99_s: float) -> Usage:
        return Usage(
            duration_s=self.now_s - then.now_s,
            router_cpu_s=self.router_cpu_s - then.router_cpu_s,
            client_cpu_s=self.client_cpu_s - then.client_cpu_s,
            busy_cpu_s=self.machine_cpu_s[0] - then.machine_cpu_s[0],
            machine_cpu_s=self.machine_cpu_s[1] - then.machine_cpu_s[1],
            client_lag_p99_s=client_lag_p99_s,
            workers=tuple(now.since(before) for now, before in zip(self.workers, then.workers, strict=True)),
        )


@asynccontextmanager
async def lags() -> AsyncIterator[list[float]]:
    """Yield a list that collects the loop's delay in seconds, measured every `LAG_STEP_S` while the block runs."""
    found: list[float] = []
    watch = asyncio.create_task(_watch(found))
    try:
        yield found
    finally:
        watch.cancel()


async def _watch(found: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + LAG_STEP_S
        await asyncio.sleep(LAG_STEP_S)
        found.append(loop.time() - due_s)

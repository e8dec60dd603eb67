"""What a run used of the machine: counters before and after it, and the delay of the load generator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from loadtest.fleet.cpu import machine_cpu_s, tree_cpu_s

LAG_STEP_S = 0.01


@dataclass(frozen=True, slots=True)
class Usage:
    """Shares of all CPU time of the machine, the router's milliseconds per call, and the load generator's delay.

    `busy_share` was used by any process, `own_share` by this run.
    """

    busy_share: float
    own_share: float
    router_cpu_ms: float
    client_lag_p99_ms: float


@dataclass(frozen=True, slots=True)
class Reading:
    """CPU seconds so far: of the router, of this run (router, workers and load generator), and of the machine."""

    router_s: float
    own_s: float
    busy_s: float
    all_s: float

    @classmethod
    def take(cls, router_pid: int, worker_pids: Iterable[int]) -> Reading:
        router_s = tree_cpu_s(router_pid)
        return cls(router_s, router_s + time.process_time() + sum(map(tree_cpu_s, worker_pids)), *machine_cpu_s())

    def since(self, then: Reading, calls: int, client_lag_p99_s: float) -> Usage:
        all_s = self.all_s - then.all_s or 1.0
        return Usage(
            busy_share=(self.busy_s - then.busy_s) / all_s,
            own_share=(self.own_s - then.own_s) / all_s,
            router_cpu_ms=(self.router_s - then.router_s) * 1e3 / max(1, calls),
            client_lag_p99_ms=client_lag_p99_s * 1e3,
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

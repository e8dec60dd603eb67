"""What a run used of the machine: counters before and after it, and the delay of the load generator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from loadtest.compare.workers import Counters, Worker, read_counters
from loadtest.fleet.cpu import machine_cpu_s, tree_cpu_s

LAG_STEP_S = 0.01


@dataclass(frozen=True, slots=True)
class Usage:
    """Shares of all CPU time of the machine, and milliseconds per call.

    `busy_share` was used by any process, `own_share` by this run. `imbalance` is the busiest worker's computed prompt
    tokens over the mean. `client_lag_p99_ms` is the load generator's delay.
    """

    busy_share: float
    own_share: float
    router_cpu_ms: float
    workers_cpu_ms: float
    client_cpu_ms: float
    imbalance: float
    client_lag_p99_ms: float


@dataclass(frozen=True, slots=True)
class Reading:
    """All counters at one moment."""

    router_cpu_s: float
    client_cpu_s: float
    machine_cpu_s: tuple[float, float]
    workers: tuple[Counters, ...]

    @classmethod
    def take(cls, workers: Sequence[Worker], router_pid: int) -> Reading:
        counters = tuple(read_counters(worker) for worker in workers)
        return cls(tree_cpu_s(router_pid), time.process_time(), machine_cpu_s(), counters)

    def since(self, then: Reading, calls: int, client_lag_p99_s: float) -> Usage:
        """Return the usage of `calls` calls since `then`."""
        workers = [now.since(before) for now, before in zip(self.workers, then.workers, strict=True)]
        router_s, client_s = self.router_cpu_s - then.router_cpu_s, self.client_cpu_s - then.client_cpu_s
        workers_s = sum(worker.cpu_s for worker in workers)
        busy_s, all_s = (now - before for now, before in zip(self.machine_cpu_s, then.machine_cpu_s, strict=True))
        computed = [worker.queries - worker.hits for worker in workers]
        per_call = 1e3 / max(1, calls)
        return Usage(
            busy_share=busy_s / all_s if all_s else 0.0,
            own_share=(router_s + client_s + workers_s) / all_s if all_s else 0.0,
            router_cpu_ms=router_s * per_call,
            workers_cpu_ms=workers_s * per_call,
            client_cpu_ms=client_s * per_call,
            imbalance=max(computed) * len(computed) / (sum(computed) or 1),
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

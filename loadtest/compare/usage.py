"""What a run used of the machine, and the delay of the load generator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

LAG_STEP_S = 0.01


@dataclass(frozen=True, slots=True)
class Usage:
    """The router's milliseconds of CPU per call, and the load generator's delay."""

    router_cpu_ms: float
    client_lag_p99_ms: float


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

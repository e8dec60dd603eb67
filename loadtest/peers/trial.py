"""One contender's turn: empty caches, a fresh router, a warm-up that is not counted, then the workload."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from loadtest.drive.chat import Timing
from loadtest.drive.conversations import play
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import StartError
from loadtest.peers.contenders import Contender, Site
from loadtest.peers.cpu import machine_cpu_s, tree_cpu_s
from loadtest.peers.figures import Usage
from loadtest.peers.launch import running_router
from loadtest.peers.workers import Counters, Worker, empty_caches, read_counters
from loadtest.report.summary import percentile
from loadtest.workload.conversations import Conversation

LAG_STEP_S = 0.01


@dataclass(frozen=True, slots=True)
class Stage:
    """What every contender meets: the fleet, its model, the requests, and where the peers and the logs are.

    `warm_up` is sent first and not counted: a router that has just started is nobody's normal state, and one that
    learns speeds online has had its first look.
    """

    workers: tuple[Worker, ...]
    model: str
    warm_up: Sequence[Conversation]
    conversations: Sequence[Conversation]
    environment: Path
    logs: Path
    session_header: str | None = None

    def site(self) -> Site:
        """A place for one more router."""
        port = free_ports(2)
        return Site(port, port + 1, self.workers, self.model, self.environment)


def run_trial(
    stage: Stage, contender: Contender, log: str, progress: Callable[[Timing], None]
) -> tuple[list[Timing], Usage]:
    """Play the workload through `contender`; its output goes to the file `log` of the stage's log folder.

    Raises:
        StartError: the router did not start, or a request of the warm-up failed.
    """
    empty_caches(stage.workers, stage.model)
    site = stage.site()
    with running_router(contender, site, stage.logs / f"{log}.log") as router:
        _warm_up(stage, contender, site)
        return _measure(stage, site, router.pid, progress)


def _warm_up(stage: Stage, contender: Contender, site: Site) -> None:
    timings = uvloop.run(play(site.url, stage.model, stage.warm_up, session_header=stage.session_header))
    for timing in timings:
        if timing.error is not None:
            raise StartError(f"{contender.name} failed a request of the warm-up: {timing.error}")


def _measure(stage: Stage, site: Site, pid: int, progress: Callable[[Timing], None]) -> tuple[list[Timing], Usage]:
    before = _Reading.take(stage, pid)
    timings, lags = uvloop.run(_play(stage, site, progress))
    return timings, _Reading.take(stage, pid).since(before, percentile(lags, 0.99))


@dataclass(frozen=True, slots=True)
class _Reading:
    """Every counter at one moment."""

    now_s: float
    router_cpu_s: float
    client_cpu_s: float
    machine_cpu_s: tuple[float, float]
    workers: tuple[Counters, ...]

    @classmethod
    def take(cls, stage: Stage, pid: int) -> _Reading:
        workers = tuple(read_counters(worker) for worker in stage.workers)
        return cls(time.monotonic(), tree_cpu_s(pid), time.process_time(), machine_cpu_s(), workers)

    def since(self, then: _Reading, client_lag_p99_s: float) -> Usage:
        return Usage(
            duration_s=self.now_s - then.now_s,
            router_cpu_s=self.router_cpu_s - then.router_cpu_s,
            client_cpu_s=self.client_cpu_s - then.client_cpu_s,
            busy_cpu_s=self.machine_cpu_s[0] - then.machine_cpu_s[0],
            machine_cpu_s=self.machine_cpu_s[1] - then.machine_cpu_s[1],
            client_lag_p99_s=client_lag_p99_s,
            workers=tuple(now.since(before) for now, before in zip(self.workers, then.workers, strict=True)),
        )


async def _play(stage: Stage, site: Site, progress: Callable[[Timing], None]) -> tuple[list[Timing], list[float]]:
    lags: list[float] = []
    watch = asyncio.create_task(_watch_lag(lags))
    try:
        return await play(site.url, stage.model, stage.conversations, progress, stage.session_header), lags
    finally:
        watch.cancel()


async def _watch_lag(lags: list[float]) -> None:
    """How much later than asked this loop wakes up, every `LAG_STEP_S`."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + LAG_STEP_S
        await asyncio.sleep(LAG_STEP_S)
        lags.append(loop.time() - due_s)

"""One contender's run: empty caches, a new router, a warm-up that does not count, then the workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from loadtest.drive.chat import Timing
from loadtest.drive.conversations import play
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import StartError
from loadtest.peers.contenders import Contender, Site
from loadtest.peers.figures import Usage
from loadtest.peers.launch import running_router
from loadtest.peers.reading import Reading, lags
from loadtest.peers.workers import Worker, empty_caches
from loadtest.report.summary import percentile
from loadtest.workload.conversations import Conversation


@dataclass(frozen=True, slots=True)
class Stage:
    """The setting that all contenders share: the fleet, its model, the requests, and where the peers and the logs are.

    `warm_up` is sent first and not counted, because a router that has just started is not in its normal state. It lets
    a router that learns speeds online take its first samples.
    """

    workers: tuple[Worker, ...]
    model: str
    warm_up: Sequence[Conversation]
    conversations: Sequence[Conversation]
    environment: Path
    logs: Path
    session_header: str | None = None

    def site(self) -> Site:
        """Return the environment of one more router."""
        port = free_ports(2)
        return Site(port, port + 1, self.workers, self.model, self.environment)


def run_trial(
    stage: Stage, contender: Contender, log: str, progress: Callable[[Timing], None]
) -> tuple[list[Timing], Usage]:
    """Play the workload through `contender`; write its output to the file `log` in the stage's log folder.

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
    before = Reading.take(stage.workers, pid)
    timings, lags_s = uvloop.run(_play(stage, site, progress))
    return timings, Reading.take(stage.workers, pid).since(before, percentile(lags_s, 0.99))


async def _play(stage: Stage, site: Site, progress: Callable[[Timing], None]) -> tuple[list[Timing], list[float]]:
    async with lags() as lags_s:
        return await play(site.url, stage.model, stage.conversations, progress, stage.session_header), lags_s

"""The requests in progress, and what acts on them from outside."""

from __future__ import annotations

import asyncio
from typing import Any

from router.config.model import Config
from router.metrics.instruments import Counter
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.query_of_death import QueryOfDeathTracker
from router.placement.ticket_life import Tickets
from router.requests.queues.gone_workers import GoneWorkers
from router.requests.queues.hold import HoldQueue
from router.requests.queues.lost_workers import LostWorkers
from router.requests.queues.no_worker import NoWorkerQueue
from router.requests.queues.quarantine import Quarantine


class InProgress:
    """The drivers of requests in progress, the queues that some wait in, and what watches the workers of the others."""

    def __init__(
        self, config: Config, fleet: Fleet, tickets: Tickets, loop: asyncio.AbstractEventLoop, deaths: Counter
    ) -> None:
        self.running: set[Any] = set()
        most = config.limits.max_queued_requests
        self.no_worker = NoWorkerQueue(fleet, loop, most)
        self.hold = HoldQueue(tickets, fleet, loop, most)
        suspects = QueryOfDeathTracker(config.retries.query_of_death_s)
        self.quarantine = Quarantine(suspects, fleet, loop, self.running, deaths, self.no_worker.changed)
        self._lost_workers = LostWorkers(fleet, loop, self.running)
        self._gone_workers = GoneWorkers(fleet, loop, self.running, config.health.probe_interval_s)

    def close(self) -> None:
        for part in (self._lost_workers, self._gone_workers, self.quarantine, self.no_worker, self.hold):
            part.close()

    def statistics(self) -> dict[str, Any]:
        return {
            "streams": len(self.running),
            "queued": len(self.no_worker),
            "held": len(self.hold),
            "held_by_route": self.hold.by_route(),
            "quarantine": self.quarantine.statistics(),
        }

"""Sources by hand, and the discovery that follows them."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from backends.discovery.registration import Registration
from router.config.model import Config, DiscoveryConfig, DiscoverySourceConfig
from router.discovery import discovery as module
from router.discovery.discovery import Discovery
from tests.router.control.conftest import Fleet
from tests.support.waiting import eventually


class HandSource:
    """A source whose answers a test gives. `breaks` counts how often it has still to end with an error."""

    kind = "hand"

    def __init__(self, breaks=0) -> None:
        self.breaks = breaks
        self.report = None

    async def run(self, report):
        if self.breaks:
            self.breaks -= 1
            raise RuntimeError("the source is broken")
        self.report = report
        await asyncio.Event().wait()

    def names(self, *urls, **fields):
        workers = [Registration(url=f"http://{url}", **fields) for url in urls]
        self.report.answer({worker.worker_id: worker for worker in workers})


class Rig:
    """Two sources in their order, a fleet in memory, and the requests at each worker."""

    def __init__(self, fleet=None, **settings) -> None:
        kinds = {name: DiscoverySourceConfig(file="/x") for name in ("first", "second")}
        kinds |= settings.pop("sources", {})
        self.config = Config(discovery=DiscoveryConfig(sources=kinds, **settings))
        self.fleet = fleet or Fleet(self.config)
        self.first, self.second = HandSource(), HandSource()
        self.requests: dict[str, int] | None = {}
        sources = {"first": self.first, "second": self.second}
        self.discovery = Discovery(self.config, self.fleet.control, self.in_flight, sources)

    async def in_flight(self):
        return self.requests

    @property
    def workers(self):
        return self.fleet.processes[0].settings.workers

    @asynccontextmanager
    async def running(self):
        self.discovery.start()
        try:
            await eventually(lambda: self.second.report is not None)
            yield self
        finally:
            await self.discovery.aclose()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name in ("BATCH_S", "LOOK_S", "_AGAIN_S"):
        monkeypatch.setattr(module, name, 0.005)


@pytest.fixture
def rig():
    return Rig()

"""The registration of a sidecar's worker, in every registry of the settings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

from backends.discovery.registration import Registration
from backends.worker import WorkerFacts
from router.config.model import Config
from router.sidecar.lease import Lease
from router.sidecar.registries import WorkerRegistry
from router.telemetry.exposition import Reading

_ANY = ("0.0.0.0", "::", "[::]")


class WorkerRegistration:
    """Describe the worker, and keep a lease in each registry.

    `facts` returns what the worker last reported, None until it has answered a probe; `port` the bound public port.
    """

    def __init__(
        self,
        config: Config,
        registries: Sequence[WorkerRegistry],
        facts: Callable[[], WorkerFacts | None],
        port: Callable[[], int],
    ) -> None:
        self._config = config
        self._facts = facts
        self._port = port
        self._started_at = time.time()
        self._leases = [Lease(registry, self._describe) for registry in registries]

    def start(self) -> None:
        for lease in self._leases:
            lease.start()

    def renew(self) -> None:
        """Register again soon, because the worker's facts have changed."""
        for lease in self._leases:
            lease.renew()

    async def withdraw(self) -> None:
        """End every registration, all at once."""
        await asyncio.gather(*(lease.withdraw() for lease in self._leases))

    async def aclose(self) -> None:
        await asyncio.gather(*(lease.aclose() for lease in self._leases))

    def readings(self) -> Iterator[Reading]:
        for lease in self._leases:
            statistics = lease.statistics()
            registry = statistics["registry"]
            yield "warmroute_sidecar_registered", (registry,), float(statistics["registered"])
            for outcome, calls in statistics["calls"].items():
                yield "warmroute_sidecar_registrations", (registry, outcome), calls

    def _describe(self, here: str) -> Registration | None:
        facts = self._facts()
        if facts is None:
            return None
        worker = self._config.workers[0]
        return Registration(
            url=self._config.sidecar.advertise_url or self._url(here),
            name=worker.name,
            model=next((card.id for card in facts.models if card.parent is None), None),
            role=worker.role,
            weight=worker.weight,
            labels=worker.labels,
            started_at=self._started_at,
        )

    def _url(self, here: str) -> str:
        config = self._config
        host = here if config.host in _ANY else config.host.strip("[]")
        scheme = "http" if config.tls.cert_file is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._port()}"

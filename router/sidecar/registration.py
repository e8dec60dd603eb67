"""The registration of a sidecar's worker, in every registry of the settings, and its lease in each."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence

from backends.discovery.registration import RENEW_S, Registration
from backends.worker import WorkerFacts
from router.config.model import Config
from router.metrics.instruments import Reading
from router.sidecar.registries import RegistryError, WorkerRegistry

log = logging.getLogger("warmroute.sidecar")

FIRST_RETRY_S = 0.5
WITHDRAW_S = 2.0
"""Longest wait for a registry when the worker goes. Its lease ends by itself."""

Describe = Callable[[str], Registration | None]
"""A function from this host's address to the registration; None while there is nothing to register."""


class Lease:
    """Register at one registry, renew every `RENEW_S`, and try again with a growing pause after a failure.

    A failure is logged once, until the registry answers again. It never stops traffic.
    """

    def __init__(self, registry: WorkerRegistry, describe: Describe) -> None:
        self._registry = registry
        self._describe = describe
        self._here: str | None = None
        self.registered: Registration | None = None
        self._failures = 0
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep(), name=f"lease {self._registry.name}")

    def renew(self) -> None:
        """Register soon, because the worker has changed."""
        self._due.set()

    async def withdraw(self) -> None:
        """End the registration. Return after `WITHDRAW_S` at most."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        registered, self.registered = self.registered, None
        if registered is None:
            return
        try:
            async with asyncio.timeout(WITHDRAW_S):
                await self._registry.withdraw(registered)
        except (RegistryError, TimeoutError) as error:
            log.warning("not withdrawn", extra={"registry": self._registry.name, "reason": str(error) or "no answer"})
        else:
            log.info("withdrawn", extra={"registry": self._registry.name})

    async def aclose(self) -> None:
        await self.withdraw()
        await self._registry.aclose()

    def readings(self) -> Iterator[Reading]:
        """Yield whether the registry holds the worker."""
        yield "warmroute_sidecar_registered", (self._registry.name,), float(self.registered is not None)

    async def _keep(self) -> None:
        while True:
            self._due.clear()
            await self._attempt()
            await self._pause(self._pause_s())

    def _pause_s(self) -> float:
        if not self._failures:
            return RENEW_S
        return random.uniform(0.5, 1.0) * min(RENEW_S, FIRST_RETRY_S * 2.0 ** min(self._failures, 10))

    async def _pause(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._due.wait()
        except TimeoutError:
            pass

    async def _attempt(self) -> None:
        try:
            registration = self._describe(await self._address())
            if registration is None:
                return
            await self._registry.register(registration)
        except (RegistryError, OSError, UnicodeError) as error:
            self._failed(str(error))
            return
        if self.registered is None or self._failures:
            log.info("registered", extra={"registry": self._registry.name, "url": registration.url})
        self.registered, self._failures = registration, 0

    def _failed(self, reason: str) -> None:
        level = logging.DEBUG if self._failures else logging.WARNING
        log.log(level, "not registered", extra={"registry": self._registry.name, "reason": reason})
        self._failures += 1

    async def _address(self) -> str:
        """Return this host's address on the way to the registry."""
        if self._here is None:
            host, port = self._registry.address
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
            family, kind, protocol, _, address = found[0]
            with socket.socket(family, kind, protocol) as towards:
                towards.connect(address)  # of UDP: sends nothing, and chooses the local address
                self._here = str(towards.getsockname()[0])
        return self._here


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
            yield from lease.readings()

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

"""A gateway beside one worker: `router.app.GatewayProcess` with a drain for the worker, and the worker itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import uvloop
from msgspec.structs import replace

from backends.vllm.control import WorkerClient
from router.app import GatewayProcess
from router.config.model import Config, DiscoveryConfig, RedisConfig
from router.control.start import Sources
from router.lifecycle import Lifecycle
from router.placement.fleet.health import SERVING, WorkerState
from router.replicas.connection import MissingRedisError
from router.security.file_problem import UnusableFileError
from router.security.settings import warnings
from router.security.tls import WorkerTls
from router.sidecar.drain_port import Drained, DrainPort
from router.sidecar.engine_check import EngineCheck
from router.sidecar.observed_worker import ObservedWorker
from router.sidecar.registration import WorkerRegistration
from router.sidecar.registries import WorkerRegistry, registries
from router.sidecar.worker_process import WorkerProcess
from router.telemetry.logs import say

LOOK_S = 0.05
STOP_S = 30.0
"""How long the command after -- may take to end after SIGTERM. Its requests have been drained, and SIGKILL follows."""
LAST_ERRORS_S = 1.0
"""How long requests get to fail after the worker's process has ended."""

log = logging.getLogger("warmroute.sidecar")


class SidecarProcess(GatewayProcess):
    """One sidecar. `command` starts the worker as a child process, if given; `on_end` is called when it has ended."""

    def __init__(
        self,
        config: Config,
        sources: Sources | None,
        registries: Sequence[WorkerRegistry],
        command: Sequence[str],
        on_end: Callable[[], None],
    ) -> None:
        client = WorkerClient(config.workers[0].api_key, WorkerTls(config.worker_tls).context_for)
        self._check = EngineCheck(config.sidecar, client, self.now_s)
        self._worker = ObservedWorker(self._check)
        # a sidecar has its own worker only, and no part in what the gateways of a fleet share
        alone = replace(config, redis=RedisConfig(), discovery=DiscoveryConfig())
        super().__init__(alone, sources=sources, observer=self._worker, answers=self._worker.answers())
        self._worker.serve(self.fleet, lambda: self._drain is not None or self._closing)
        self._drain: asyncio.Task[Drained] | None = None
        self._return: asyncio.Task[None] | None = None
        self._drain_port = DrainPort(config, self.drain)
        self._registration = WorkerRegistration(config, registries, lambda: self._worker.facts, self._public_port)
        self.view.instruments.parts.append(self._registration)
        self._worker.on_facts = self._registration.renew
        self._closing = False
        self._on_end = on_end
        self._child = WorkerProcess(command, self._child_ended) if command else None

    async def open_admin(self) -> None:
        """Serve the admin port and the drain port, then start the worker."""
        await super().open_admin()
        log.info("drain port listening", extra={"url": f"http://{await self._drain_port.start()}/drain"})
        self._registration.start()
        if self._child is not None:
            await self._child.start()

    def _public_port(self) -> int:
        name = self.gateway.listeners[0].getsockname()
        return int(name[1]) if isinstance(name, tuple) else 0

    async def drain(self) -> Drained:
        """Report not ready, and send the worker no new requests; return when the running ones have ended, or after
        `timeouts.drain_s`.

        The drain ends when the worker's process has ended and another one answers, as after a restart by Kubernetes.
        """
        if self._drain is None:
            self._drain = asyncio.get_running_loop().create_task(self._drained(), name="drain")
        return await asyncio.shield(self._drain)

    async def _drained(self) -> Drained:
        timeouts = self.config.timeouts
        log.info("draining", extra={"delay_s": timeouts.drain_delay_s, "drain_s": timeouts.drain_s})
        self.ports.begin_drain()
        await self._registration.withdraw()
        await asyncio.sleep(timeouts.drain_delay_s)
        for endpoint in self.fleet.endpoints:
            self.fleet.drain(endpoint.id)
        end_s = self.now_s() + timeouts.drain_s
        while self._running and self.now_s() < end_s and self._check.fault() is None:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        log.info("drained", extra={"requests": self._running})
        if not self._closing:
            self._return = asyncio.get_running_loop().create_task(self._returned(), name="return")
        return Drained(self._running)

    @property
    def _running(self) -> int:
        return int(self.gateway.statistics()["streams"])

    async def _returned(self) -> None:
        """End the drain once another process of the worker answers."""
        before_s = self._worker.started_s
        gone = False
        while not (gone and self._worker_answers):
            started_s = self._worker.started_s
            if started_s is None or before_s is None:  # several API servers: only an outage shows another process
                gone = gone or any(one.health.condition is WorkerState.UNHEALTHY for one in self.fleet.endpoints)
            else:
                gone = started_s != before_s
            await asyncio.sleep(LOOK_S)
        for endpoint in self.fleet.endpoints:
            self.fleet.undrain(endpoint.id)
        self._drain = None
        self.ports.end_drain()
        self._registration.start()
        log.info("the worker is back; the drain has ended")

    @property
    def _worker_answers(self) -> bool:
        """Whether the worker would take requests, were it not for the drain."""
        return any(one.health.condition in SERVING for one in self.fleet.endpoints)

    def _child_ended(self) -> None:
        self._closing = True
        self.ports.begin_drain()
        self._on_end()

    @property
    def exit_code(self) -> int:
        """The exit code of the worker's process; 0 without one."""
        code = self._child.exit_code if self._child is not None else None
        return code or 0

    async def aclose(self, drain_s: float | None = None) -> None:
        """Drain, release everything, then stop the worker's process."""
        self._closing = True
        dead = self._child is not None and self._child.exit_code is not None
        limit_s = self.config.timeouts.drain_s if drain_s is None else drain_s
        if self._return is not None:
            self._return.cancel()
        self.gateway.drain()
        await self._registration.aclose()
        await super().aclose(min(limit_s, LAST_ERRORS_S) if dead else limit_s)
        if self._child is not None:
            await self._child.stop(STOP_S)
        await self._drain_port.aclose()
        if self._drain is not None:
            self._drain.cancel()
        await self._check.aclose()


async def serve(config: Config, sources: Sources | None, command: Sequence[str]) -> int:
    """Run a sidecar, and `command` as its child if there is one; return the exit code."""
    for warning in warnings(config):
        log.warning(warning)
    try:
        found = registries(config)
    except (MissingRedisError, UnusableFileError) as error:
        say(f"warmroute sidecar: cannot register: {error}")
        return 1
    system = SidecarProcess(config, sources, found, command, on_end=lambda: lifecycle.end())
    lifecycle = Lifecycle(system, command="sidecar")
    return await lifecycle.run() or system.exit_code


def run(config: Config, sources: Sources | None, command: Sequence[str]) -> int:
    """Run a sidecar in this process; return its exit code."""
    try:
        return uvloop.run(serve(config, sources, command))
    except KeyboardInterrupt:
        return 130

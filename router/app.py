"""The composition root: makes the parts, starts them in order, stops them in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import signal
import socket
import sys
from collections.abc import Iterator, Mapping

import uvicorn
import uvloop
from starlette.applications import Starlette

from backends.worker import parse_endpoint
from policies.registry import build_policy
from router.admin.app import build_admin
from router.config.model import Config, WorkerConfig
from router.core.dispatcher import Dispatcher
from router.core.edges import Request
from router.core.fleet import Fleet, FleetEndpoint
from router.gateway.listen import ListenError, SocketFile, remove_socket_file, socket_file, tcp_error
from router.gateway.server import Gateway
from router.prefix.residency import ResidencyMap
from router.telemetry.exposition import Exposition
from router.telemetry.loop_lag import LoopLag
from router.telemetry.metrics import Metrics
from router.telemetry.readings import fleet_readings, gateway_readings, residency_readings, watch_readings
from router.telemetry.timed import TimedDispatcher
from router.tokens.identity import Identity
from router.watch.watcher import Watcher

log = logging.getLogger("warmroute.serve")

YOUNG_OBJECTS = 10_000
"""New containers between two young collections, each of which takes well under a millisecond."""


class System:
    """One gateway process. Satisfies `router.admin.system.System`."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.metrics = Metrics()
        self.residency = ResidencyMap(config.residency.approximate_bytes, config.residency.relearn_blocks_per_s)
        self.fleet = Fleet(config.health, self.residency, kv_events=config.residency.kv_events)
        self.identity = Identity(config)
        self.dispatcher: Dispatcher = TimedDispatcher(
            self.fleet,
            self.residency,
            build_policy(config.policy.name, config.policy.params, random.Random(config.policy.seed)),
            policy_name=config.policy.name,
            policy_params=config.policy.params,
            decisions_kept=config.decisions_kept,
            observer=self.metrics,
            took=self.metrics.decision_took,
        )
        self.residency.on_settled.append(self.dispatcher.explained)
        self.watcher = Watcher(self.fleet, self.residency, self.identity, config, self.metrics, clock=self.now_s)
        self.fleet.on_unknown_model.append(lambda model: self.watcher.look_again())
        relearn = self.residency if config.residency.relearn == "piggyback" else None
        self.gateway = Gateway(config, self.dispatcher, self.fleet, self.identity, self.metrics, relearn)
        self.loop_lag = LoopLag(self.metrics.loop_lag)
        self._exposition = Exposition(
            self.metrics.registry,
            [
                lambda: fleet_readings(self.fleet),
                lambda: residency_readings(self.fleet, self.residency),
                lambda: watch_readings(self.watcher.statistics()),
                lambda: gateway_readings(self.gateway.statistics()),
            ],
        )
        self._admin: AdminServer | None = None
        self._socket_file: SocketFile | None = None
        self.accepting = False

    def now_s(self) -> float:
        """The loop's clock: monotonic seconds."""
        return asyncio.get_running_loop().time()

    async def start(self) -> None:
        """Watch the configured workers, then listen.

        Raises:
            ListenError: an address cannot be bound; the message names it and the setting to change.
        """
        self._admin = AdminServer(build_admin(self), self.config.admin_host, self.config.admin_port)
        for worker in self.config.workers:
            self.fleet.add(parse_endpoint(worker.url), self.now_s())
        self.watcher.start()
        self.loop_lag.start()
        await self._open_gateway()
        self._admin.start()
        log.info("admin port listening", extra={"url": _url(self._admin.address)})
        self.accepting = True
        _tune_collector()

    async def _open_gateway(self) -> None:
        addresses = await self.gateway.start()
        if self.config.uds is not None:
            self._socket_file = socket_file(self.config.uds)
        for address in addresses:
            log.info("public port listening", extra={"url": _url(address)})

    async def aclose(self) -> None:
        """Readiness off, streams finish within `timeouts.drain_s`, then everything is given back."""
        self.accepting = False
        await self.gateway.aclose(self.config.timeouts.drain_s)
        if self._socket_file is not None:
            remove_socket_file(self._socket_file)
        await self.watcher.aclose()
        await self.loop_lag.aclose()
        await self.identity.aclose()
        if self._admin is not None:
            await self._admin.aclose()

    async def add_worker(self, worker: WorkerConfig) -> FleetEndpoint:
        """Add an endpoint to the fleet and begin to watch it.

        Raises:
            ValueError: `worker.url` is not a worker URL.
            KeyError: an endpoint with that id is in the fleet already.
        """
        endpoint = parse_endpoint(worker.url)
        if self.fleet.get(endpoint.authority) is not None:
            raise KeyError(endpoint.authority)
        joined = self.fleet.add(endpoint, self.now_s())
        self.watcher.watch(joined.id, worker)
        return joined

    async def remove_worker(self, endpoint_id: str) -> None:
        """Forget an endpoint; started answers on it run to their end, other requests move where they can.

        Raises:
            KeyError: no such endpoint.
        """
        if self.fleet.get(endpoint_id) is None:
            raise KeyError(endpoint_id)
        self.watcher.forget(endpoint_id)
        self.fleet.remove(endpoint_id, self.now_s())

    async def request_of(self, path: str, headers: Mapping[str, str], body: bytes) -> Request:
        """The request the gateway would make of these bytes, identified but not dispatched.

        Raises:
            RequestError: as the public port would answer.
        """
        return await self.gateway.preview(path, headers, body)

    def exposition(self) -> tuple[bytes, str]:
        """All metrics in Prometheus text format, and their content type."""
        return self._exposition.render()


class AdminServer:
    """uvicorn on the gateway's own event loop, its socket bound before anything starts.

    Raises:
        ListenError: the address cannot be bound.
    """

    def __init__(self, app: Starlette, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host.strip("[]"), port))
            self._socket.listen(256)
        except OSError as error:
            self._socket.close()
            raise tcp_error("admin", "admin_", host, port, error) from None
        settings = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, server_header=False)
        self._server = _Server(settings)
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """``host:port`` as bound."""
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self) -> None:
        """Serve on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._socket]), name="admin")

    async def aclose(self) -> None:
        """Stop serving; open connections are dropped."""
        self._server.should_exit = self._server.force_exit = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's own affair."""
        yield


def _tune_collector() -> None:
    """What exists now lives as long as the process: keep it out of every later collection. Requests leave no cycles,
    so that a young collection finds little; at the default of 700 objects it runs every few requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)


def _url(address: str) -> str:
    return f"unix:{address}" if address.startswith(("/", ".")) else f"http://{address}"


async def serve(config: Config) -> int:
    """Run one gateway until SIGTERM or SIGINT; a second signal ends it at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    system = System(config)
    try:
        await system.start()
    except ListenError as error:
        sys.stderr.write(f"warmroute serve: cannot listen: {error}\n")
        await system.aclose()
        return 1
    await stop.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    log.info("shutting down", extra={"drain_s": config.timeouts.drain_s})
    await system.aclose()
    return 0


def run(config: Config) -> int:
    """The process's whole life; returns its exit code."""
    try:
        return uvloop.run(serve(config))
    except KeyboardInterrupt:
        return 130

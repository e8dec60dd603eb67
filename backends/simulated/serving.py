"""Run an embedded worker on real sockets: `run` as a process of its own, `serving` in a test's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from backends.simulated.deaths import WorkerDeath
from backends.simulated.server import build_app
from backends.simulated.settings import BoundWorker, WorkerSettings
from backends.simulated.worker import SimulatedWorker

_log = logging.getLogger(__name__)

_BACKLOG = 2048
# vLLM's VLLM_HTTP_TIMEOUT_KEEP_ALIVE.
_KEEP_ALIVE_S = 5
_SHUTDOWN_S = 1
_TICK_S = 0.1
_EXIT_S = 0.1
"""Between the death of vLLM's engine and the end of its server."""
_READ_S = 0.1
"""For peers to read what was sent: a reset destroys what they have not read."""
_NO_LINGER = struct.pack("ii", 1, 0)


class _WorkerServer(uvicorn.Server):
    """A uvicorn server that leaves signals to `run` and reports when it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serves = asyncio.Event()
        self.leaves = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.serves.set()

    async def main_loop(self) -> None:
        """Wait for the exit, without uvicorn's polling ten times a second."""
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.leaves.wait(), _TICK_S)


@dataclass(slots=True)
class RunningWorker:
    """A serving worker: its addresses, and its parts for tests (`worker.statistics()`)."""

    bound: BoundWorker
    worker: SimulatedWorker
    _server: _WorkerServer
    _serve: asyncio.Task[None]
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has died by `die`, or has shut down."""
    _dying: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return self.bound.url

    async def stop(self) -> None:
        """Shut down as vLLM does at SIGTERM: running answers end with the reason "abort", then the ports close.
        Idempotent."""
        if self._serve.done():
            return
        self._server.should_exit = True
        self._server.leaves.set()
        await self.worker.aclose()
        await self._serve

    async def kill(self, *, reset: bool = False) -> None:
        """Die as if by SIGKILL: every connection is cut at once, and the ports are free again."""
        self._close_listeners()
        for connection in list(self._server.server_state.connections):
            if (transport := getattr(connection, "transport", None)) is not None:
                if reset:
                    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                transport.abort()
        self._server.force_exit = True
        await self.stop()

    def die(self, way: WorkerDeath) -> None:
        """Begin to die in one of vLLM's ways; `gone` is set at the end."""
        if self._dying is None:
            self.worker.fall_silent()
            self._dying = asyncio.get_running_loop().create_task(self._die(way))

    async def _die(self, way: WorkerDeath) -> None:
        match way:
            case WorkerDeath.RESET:
                await asyncio.sleep(_READ_S)
                await self.kill(reset=True)
            case WorkerDeath.END:
                await self.kill()
            case WorkerDeath.ERROR:
                self.worker.die()
                await asyncio.sleep(_EXIT_S)
                await self.stop()
            case WorkerDeath.ABORT:
                await self.stop()
            case WorkerDeath.SILENCE:
                self._close_listeners()
                await self._connections_closed()
        self.gone.set()

    async def shut_down(self) -> None:
        """End as vLLM does at SIGTERM, by the worker's settings."""
        settings = self.worker.settings
        if settings.shutdown_timeout_s:
            self.worker.stop_reading()
            await self.worker.until_idle(settings.shutdown_timeout_s)
        silent = settings.silent_shutdown or (settings.shutdown_timeout_s and not self.worker.idle)
        self.die(WorkerDeath.SILENCE if silent else WorkerDeath.ABORT)
        await self.gone.wait()

    def _close_listeners(self) -> None:
        for server in self._server.servers:
            server.close()

    async def _connections_closed(self) -> None:
        connections = self._server.server_state.connections
        for connection in list(connections):
            connection.shutdown()  # closes those without a request
        while connections:  # noqa: ASYNC110 (uvicorn has no event for it)
            await asyncio.sleep(_TICK_S)


def _listen(settings: WorkerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


async def start(settings: WorkerSettings) -> RunningWorker:
    """Start a worker on the running loop; the caller stops it.

    Raises:
        OSError: an address cannot be bound.
    """
    worker = SimulatedWorker(settings)
    listener = _listen(settings)
    try:
        await worker.start()
    except BaseException:
        listener.close()
        raise
    config = uvicorn.Config(
        build_app(worker),
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    worker.transfers.address = settings.host, listener.getsockname()[1]
    server = _WorkerServer(config)
    serve = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
    await server.serves.wait()
    endpoint, replay_endpoint = worker.event_endpoints or (None, None)
    bound = BoundWorker(settings.host, listener.getsockname()[1], endpoint, replay_endpoint)
    running = RunningWorker(bound, worker, server, serve)
    worker.death.strike = running.die
    return running


@contextlib.asynccontextmanager
async def serving(settings: WorkerSettings | None = None) -> AsyncIterator[RunningWorker]:
    """Run an embedded worker for the length of a ``with``, on the running event loop and free ports::

        async with serving(WorkerSettings(time_scale=0.01)) as running:
            await client.post(f"{running.url}/v1/completions", ...)
            running.worker.statistics()["engine"]["running"]

    `running.kill()` ends it like a crash. The ``with`` block may end after that.
    """
    running = await start(settings or WorkerSettings())
    try:
        yield running
    finally:
        await running.stop()


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def run(settings: WorkerSettings, ready: Callable[[BoundWorker], None]) -> None:
    """Serve until SIGTERM, SIGINT or cancellation; `ready` is called once everything listens.

    Raises:
        OSError: an address cannot be bound.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with serving(settings) as running:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            if number is signal.SIGHUP and os.isatty(0):
                loop.add_signal_handler(number, stopped.set)
            elif signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, _log.warning, "%s means nothing here; going on", number.name)
        try:
            ready(running.bound)
            await _first_of(stopped.wait(), running.gone.wait())
            await running.shut_down()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

"""The parent of several processes. It owns sockets, shared memory and the admin port, and carries no requests."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import uvloop
from msgspec.structs import replace

from router.admin.app import build_admin
from router.admin.http.server import AdminServer
from router.config.model import Config
from router.control.control import Control
from router.control.start import Sources
from router.discovery.discovery import Discovery
from router.gateway.listen.drain import SETTLE_S, refuse_handshakes
from router.gateway.listen.sockets import SocketFile, public_sockets, remove_socket_file, socket_file
from router.gateway.server import BACKLOG, LAST_WORDS_S, address_of
from router.limits.host_use import HostUse
from router.process import signals
from router.process.children.admin_operations import operations_for_all
from router.process.children.all_processes import AllProcesses
from router.process.children.changes import Changes
from router.process.children.child_config import ChildConfig, config_of
from router.process.children.child_process import TRIES, ChildCallbacks, ChildProcess
from router.process.control_plane import ControlPlane
from router.process.listeners import Listeners, admin_socket, url_of
from router.process.shared_memory.ledger import Ledger, make_table
from router.process.shared_memory.replica_rows import ReplicaRows, ledger_rows
from router.process.systemd import Notifier, activated
from router.replicas.replica import Replica
from router.requests.front import ListenError
from router.security.instance import Instance
from router.security.reload import FileWatch
from router.security.settings import warnings
from router.security.token import guard_of
from router.telemetry.logs import log_level, say

log = logging.getLogger("warmroute.process")

_GRACE_S = 5.0
"""Time beyond the drain deadline that a process has to end."""


class Supervisor:
    """Run `processes` gateways behind one public port, and one admin port that answers for all of them."""

    def __init__(self, config: Config, processes: int, child_module: str, sources: Sources | None = None) -> None:
        sources = sources or Sources(config, lambda: config)
        self._config = config
        self.given_up = asyncio.Event()
        """Set when no process can be started."""
        self._folder = Path(tempfile.mkdtemp(prefix="warmroute-"))  # only this user can enter it
        rows_per_slot = ledger_rows(config, processes)
        self._table = make_table(rows_per_slot)
        # the supervisor reads and clears rows, and writes the one of other replicas; it makes no reservations
        self._ledger = Ledger(self._table, rows_per_slot, rows_per_slot - 1)
        self._served = asyncio.Event()
        callbacks = ChildCallbacks(self._begin, self._served.set, self._ended)
        self.children = [ChildProcess(number, self._folder, callbacks, child_module) for number in range(processes)]
        changes = Changes(self.children)
        self.control = Control(sources, sources.initial(), changes.apply)
        self._instance = Instance()
        discovery = Discovery(config, self.control, lambda: self._view.in_flight())
        self._plane = ControlPlane(config, self.control, discovery, self._replica(processes))
        self._view = AllProcesses(self.children, changes, self._plane)
        self._public: Sequence[socket.socket] = ()
        self._given: Listeners | None = None
        self._notifier = Notifier(os.environ, self._status)
        self._files = FileWatch(self._view.totals.reloads)
        self._socket_file: SocketFile | None = None
        self._admin: AdminServer | None = None
        self._keeping: list[asyncio.Task[None]] = []
        self._announcing: asyncio.Task[None] | None = None

    def _replica(self, processes: int) -> Replica | None:
        if self._config.redis.url is None:
            return None
        return Replica(
            self._config,
            processes=processes,
            rows=ReplicaRows(self._ledger),
            use=HostUse(self._ledger.rate_limits()),
            control=self.control,
        )

    async def start(self) -> None:
        """Listen and start the processes.

        Raises:
            ListenError: an address cannot be bound.
        """
        config = self._config
        self._given = given = activated(os.environ, os.getpid())
        self._public = given.public if given is not None else public_sockets(config, BACKLOG)
        if config.uds is not None and given is None:
            self._socket_file = socket_file(config.uds)
        tokens, tls = guard_of(config, self._files)
        app = build_admin(self._view, tokens, operations=operations_for_all(self._view))
        listener = (given.admin if given is not None else None) or admin_socket(config)
        self._admin = AdminServer(app, listener, config, tls)
        self._files.start()
        self._keeping = [asyncio.create_task(child.keep(), name=f"process {child.number}") for child in self.children]
        self._announcing = asyncio.create_task(self._announce(self._admin), name="announce")
        self._view.accepting = True

    async def _announce(self, admin: AdminServer) -> None:
        """Report readiness once a process serves. Earlier connections wait in the sockets' queues."""
        await self._served.wait()
        for listener in self._public:
            url = url_of(address_of(listener.getsockname()), self._config.tls)
            log.info("public port listening", extra={"url": url})
        if self._plane.replica is not None:
            self._plane.replica.start()
        await self.control.opened()
        self._plane.start(self._view)
        await admin.start()
        log.info("admin port listening", extra={"url": url_of(admin.address, self._config.admin_tls)})
        self._notifier.ready()

    def _status(self) -> str:
        return f"{len(self._view.clients)} of {len(self.children)} processes serve"

    async def aclose(self) -> None:
        """Let every process finish its requests within `timeouts.drain_s`, then release everything.

        After `timeouts.drain_delay_s` no new connection can start. The processes accept for `SETTLE_S` more, because
        closing a listener resets the connections in its queue.
        """
        self._view.accepting = False
        self._notifier.stopping()
        await self._plane.aclose()
        self._files.close()
        if self._announcing is not None:
            self._announcing.cancel()
        for child in self.children:
            child.stop()
        if self._keeping:
            await asyncio.sleep(self._config.timeouts.drain_delay_s)
        if self._given is None:
            refuse_handshakes(self._public)
        for listener in self._public:
            listener.close()
        await self._all_ended()
        if self._socket_file is not None:
            remove_socket_file(self._socket_file)
        if self._admin is not None:
            await self._admin.aclose(leave_queue=self._given is not None)
        await self._notifier.aclose()
        if self._plane.replica is not None:
            await self._plane.replica.aclose()
        self._ledger.close()
        os.close(self._table)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _all_ended(self) -> None:
        if not self._keeping:
            return
        timeouts = self._config.timeouts
        limit_s = timeouts.drain_delay_s + SETTLE_S + timeouts.drain_s + LAST_WORDS_S + _GRACE_S
        _, late = await asyncio.wait(self._keeping, timeout=limit_s)
        for child in self.children if late else ():
            child.kill()
        await asyncio.gather(*self._keeping, return_exceptions=True)

    async def _begin(self, number: int, admin: int, start: Callable[[ChildConfig], Awaitable[None]]) -> None:
        """Start a process with the desired state, under the lock that keeps the state from changing."""
        async with self.control.lock:
            await start(self._child_config(number, admin))

    def _child_config(self, number: int, admin: int) -> ChildConfig:
        state, processes, replica = self.control.state, len(self.children), self._plane.replica
        return ChildConfig(
            process=number,
            processes=processes,
            config=replace(config_of(self._config, state, number, processes), log_level=log_level()),
            state=state,
            public=tuple(listener.fileno() for listener in self._public),
            admin=admin,
            table=self._table,
            replica=replica.id if replica is not None else "",
            instance=self._instance.name,
        )

    def _ended(self, number: int) -> None:
        """Clear the load and the metrics of a process that has ended."""
        self._ledger.clear(number)
        self._view.totals.ended(number)
        if not self._view.accepting:
            return
        self._view.totals.restarted()
        if not self._view.clients and self.children[number].failures >= TRIES:
            self.given_up.set()


async def serve(config: Config, processes: int, child_module: str, sources: Sources | None = None) -> int:
    """Run the processes until SIGTERM or SIGINT. A second signal ends all at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    for warning in warnings(config):
        log.warning(warning)
    supervisor = Supervisor(config, processes, child_module, sources)
    signals.handle(loop, stop.set, lambda: supervisor.control.reloads.soon("SIGHUP"))
    try:
        await supervisor.start()
    except ListenError as error:
        say(f"warmroute serve: cannot listen: {error}")
        await supervisor.aclose()
        return 1
    code = await _until(stop, supervisor.given_up)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    log.info("shutting down", extra={"drain_s": config.timeouts.drain_s})
    await supervisor.aclose()
    return code


async def _until(stop: asyncio.Event, given_up: asyncio.Event) -> int:
    waits = [asyncio.ensure_future(event.wait()) for event in (stop, given_up)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if stop.is_set():
        return 0
    say(f"warmroute serve: no process could be started in {TRIES} tries; see the log above")
    return 1


def run(config: Config, processes: int, child_module: str, sources: Sources | None = None) -> int:
    """Run `processes` children, each as ``python -m child_module``; return the exit code."""
    with suppress(KeyboardInterrupt):
        return uvloop.run(serve(config, processes, child_module, sources))
    return 130

"""The public port and the admin port of one gateway process, from the first connection to the last."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Callable, Mapping

from policies.view import WorkerId
from router.admin.http.server import AdminServer
from router.admin.system import TakeoverState
from router.config.model import Config
from router.gateway.http.large_blocks import map_large_blocks
from router.gateway.listen.drain import SETTLE_S
from router.gateway.listen.sockets import SocketFile, remove_socket_file, socket_file
from router.placement.fleet.fleet import Fleet
from router.process.banner import Readiness, announce
from router.process.children.child import ChildResources
from router.process.front import ListeningFront
from router.process.listeners import ListenAddresses, Listeners, listen_addresses, url_of
from router.process.shared_memory.replica_rows import ReplicaLedger
from router.process.takeover.client import TakeoverClient

log = logging.getLogger("warmroute.process")

YOUNG_OBJECTS = 10_000
"""New containers between two young collections. One collection takes well under a millisecond."""


class Ports:
    """Open both ports, hand their sockets over to another process, take them back, and close them.

    `resources` has the sockets of one of several processes, and `ledger` is what a process alone keeps beside other
    replicas.
    """

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        gateway: ListeningFront,
        resources: ChildResources | None,
        ledger: ReplicaLedger | None,
    ) -> None:
        self.accepting = False
        self.takeover_state = TakeoverState.NONE
        self.takeover_client: TakeoverClient | None = None
        """The connection to the gateway that this one took over from."""
        self.leave_queue = False
        """Whether another process holds the listeners, so that the connections in their queues are for that process."""
        self._config = config
        self._fleet = fleet
        self._gateway = gateway
        self._resources = resources
        self._ledger = ledger
        self._admin: AdminServer | None = None
        self._socket_file: SocketFile | None = None
        self._given: Listeners | None = None
        """The listeners that `open` received; None if this process bound its own."""
        self._kept: tuple[Listeners, SocketFile | None, bool] | None = None
        """Duplicates of the listeners that were handed over, and the `_socket_file` and `leave_queue` that go with
        them, for `resume`."""
        self._banner: asyncio.Task[None] | None = None
        self._addresses: list[str] = []

    async def open(self, admin: AdminServer, listeners: Listeners | None) -> None:
        """Serve the public port, on `listeners` if given. `admin` is bound, and serves after `open_admin`.

        Raises:
            ListenError: an address cannot be bound.
        """
        self._admin, self._given = admin, listeners
        _tune_memory()
        if self._resources is not None:
            await self._open_child(self._resources)
        else:
            await self._open_own(listeners)
        self.accepting = True

    async def _open_child(self, resources: ChildResources) -> None:
        ledger = resources.ledger
        self._addresses = await self._gateway.start(
            resources.public,
            accept_order=resources.accept_order,
            pins=ledger.pins(self._pinnable),
            deaths=ledger.deaths(),
            limits=ledger.rate_limits(),
        )
        self.leave_queue = True

    async def _open_own(self, listeners: Listeners | None) -> None:
        own = self._ledger
        self._addresses = await self._gateway.start(
            listeners.public if listeners is not None else None,
            limits=own.limits if own is not None else None,
        )
        self.leave_queue = listeners is not None
        if self._config.uds is not None and not (listeners is not None and listeners.manager_owned):
            self._socket_file = socket_file(self._config.uds)
        for address in self._addresses:
            log.info("public port listening", extra={"url": url_of(address, self._config.tls)})

    def _pinnable(self) -> list[WorkerId]:
        """Return what a stored response can be pinned to. The search for one finds an endpoint, not a rank of it."""
        fleet = self._fleet
        return [*(one.id for one in fleet.candidates), *(WorkerId(one.id) for one in fleet.endpoints)]

    async def open_admin(self, readiness: Callable[[], Readiness]) -> None:
        """Serve the admin port, after `open`. The first process says when the gateway is ready."""
        await self.admin.start()
        if self._resources is None:
            log.info("admin port listening", extra={"url": url_of(self.admin.address, self._config.admin_tls)})
        if self._resources is None or self._resources.given.process == 0:
            self._banner = asyncio.create_task(announce(readiness, self._addresses[0], self._config), name="banner")

    @property
    def admin(self) -> AdminServer:
        assert self._admin is not None, "open first"
        return self._admin

    def listeners(self) -> Listeners:
        """Return the listening sockets, on which another process may continue to accept."""
        manager_owned = self._given is not None and self._given.manager_owned
        return Listeners(self._gateway.listeners, self.admin.listener, manager_owned)

    def listen_addresses(self) -> ListenAddresses:
        return listen_addresses(self._config, self.listeners(), self._given)

    def in_flight(self) -> Mapping[str, int]:
        """Return requests at each worker, including those of a gateway that this one took over from."""
        elsewhere = self.takeover_client.in_flight if self.takeover_client is not None else {}
        return Counter(self._gateway.in_flight()) + Counter(elsewhere)

    def drained_everywhere(self, endpoint_id: str) -> bool:
        """Return whether a gateway that this one took over from also sends no requests to a drained worker."""
        return self.takeover_client is None or self.takeover_client.drains(endpoint_id)

    # takeover by another process

    async def release(self) -> None:
        """Stop accepting and report not ready, because another process accepts. Running requests continue.

        The sockets stay open until `resume` or `aclose`.
        """
        self.accepting = False
        self._end_banner()
        self.takeover_state = TakeoverState.DONE
        try:
            self._kept = self.listeners().duplicates(), self._socket_file, self.leave_queue
        except OSError as error:
            log.warning("the listening sockets cannot be kept", extra={"reason": str(error)})
        self.yield_listeners()
        self._gateway.drain()
        await self._gateway.stop_accepting(leave_queue=True)
        await self.admin.stop_accepting(leave_queue=True)

    def yield_listeners(self) -> None:
        """Leave the listeners' queues and the file of a Unix socket to another process."""
        self.leave_queue = True
        self._socket_file = None

    @property
    def can_resume(self) -> bool:
        return self._kept is not None

    async def resume(self) -> None:
        """After `release`: serve as before, because the process that took over has died.

        Raises:
            OSError: a socket cannot be listened on.
        """
        assert self._kept is not None, "hand over first, and keep the sockets"
        (listeners, self._socket_file, self.leave_queue), self._kept = self._kept, None
        await self._gateway.accept_again(listeners.public)
        if listeners.admin is not None:
            self.admin.accept_again(listeners.admin)
        self.takeover_state = TakeoverState.NONE
        self.accepting = True

    # end

    def begin_drain(self) -> None:
        """Report not ready. Connections are still accepted, and every further answer closes its own."""
        self.accepting = False
        self._gateway.drain()

    def end_drain(self) -> None:
        """Undo `begin_drain`."""
        self.accepting = True
        self._gateway.end_drain()

    async def aclose(self, drain_s: float) -> None:
        """Report not ready, accept for another `timeouts.drain_delay_s`, let streams finish within `drain_s`, then
        close. An admin call in progress ends.
        """
        if self._kept is not None:
            self._kept[0].close()
            self._kept = None
        self._end_banner()
        accepted = self.accepting
        self.begin_drain()
        if accepted:
            # one of several processes accepts until no new connection can come: see `Supervisor.aclose`
            settle_s = SETTLE_S if self._resources is not None else 0.0
            await asyncio.sleep(self._config.timeouts.drain_delay_s + settle_s)
        await self._gateway.aclose(drain_s, leave_queue=self.leave_queue)
        if self._socket_file is not None:
            remove_socket_file(self._socket_file)
        if self._admin is not None:
            await self._admin.aclose(leave_queue=self.leave_queue)

    def _end_banner(self) -> None:
        if self._banner is not None:
            self._banner.cancel()


def _tune_memory() -> None:
    """Return large freed blocks to the system, and keep long-lived objects out of garbage collections.

    Requests leave no reference cycles, so a young collection finds little. At the default of 700 objects a collection
    would run every few requests.
    """
    map_large_blocks()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)

"""One gateway process, from its start, perhaps in place of another, to its drained end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from router.admin.system import HandoverState
from router.config.model import Config
from router.gateway.listen.sockets import ListenError
from router.placement.fleet import Fleet
from router.placement.health import WorkerState
from router.process import signals
from router.process.handover.client import HandoverClient
from router.process.handover.messages import VERSION, SocketsOffered, TakeoverError
from router.process.handover.server import HandoverCallbacks, HandoverServer
from router.process.listeners import ListenAddresses, Listeners
from router.process.systemd import Notifier, activated
from router.telemetry.logs import say

log = logging.getLogger("warmroute.serve")

LINGER_S = 3.0
"""How long a gateway that was taken over stays at least, so that it can serve again if its successor dies early."""
_LOOK_S = 0.02
_ENDING = (signal.SIGTERM, signal.SIGINT)
_FOR_ONE_PROCESS = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID")
"""Variables by which a service manager speaks to one process, not to those it starts."""


class ServingSystem(Protocol):
    """A gateway that can be started, handed over, resumed and drained: `router.app.System`."""

    config: Config
    fleet: Fleet
    handover_state: HandoverState
    handover_client: HandoverClient | None
    leave_queue: bool

    def begin(self) -> None:
        """Start to watch the workers."""
        ...

    async def open(self, listeners: Listeners | None = None) -> None:
        """Serve the public port; bind the admin port."""
        ...

    async def open_admin(self) -> None:
        """Serve the admin port."""
        ...

    def listeners(self) -> Listeners:
        """Return the listening sockets of both ports."""
        ...

    def listen_addresses(self) -> ListenAddresses:
        """Return the addresses of both ports by the settings."""
        ...

    def in_flight(self) -> Mapping[str, int]:
        """Return the requests at each worker, by endpoint."""
        ...

    def drained_everywhere(self, endpoint_id: str) -> bool:
        """Return whether a gateway that this one took over from sends nothing to a drained worker either."""
        ...

    async def drained(self) -> None:
        """Wait until no request is in progress."""
        ...

    async def hand_over(self, *, keep: bool) -> None:
        """Stop accepting, because another process accepts; `keep` leaves the sockets open for `resume`."""
        ...

    def yield_listeners(self) -> None:
        """Leave the listeners' queues and the file of a Unix socket to another process."""
        ...

    @property
    def can_resume(self) -> bool:
        """Whether the sockets that were handed over are still open here."""
        ...

    async def resume(self) -> None:
        """Accept again after `hand_over`."""
        ...

    async def aclose(self, drain_s: float | None = None) -> None:
        """Drain and release everything."""
        ...


class Lifecycle:
    """Runs `system` until a signal ends it, or another process has taken its place."""

    def __init__(self, system: ServingSystem, environment: Mapping[str, str] = os.environ) -> None:
        self._system = system
        self._config = system.config
        self._environment = environment
        self._over = asyncio.Event()
        self._signal = False
        self._superseded = asyncio.Event()
        """Nothing can make us serve again."""
        self._lost = asyncio.Event()
        """The process that took our place has died."""
        self._drain_until_s = 0.0
        self._handover_client: HandoverClient | None = None
        self._handover_server: HandoverServer | None = None
        self._notifier = Notifier(environment, self._status)

    async def run(self) -> int:
        """The exit code. A second signal ends the process at once."""
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            loop.add_signal_handler(number, self._signalled)
        signals.handle(loop, self._signalled)
        try:
            await self._start()
        except (ListenError, TakeoverError) as error:
            say(f"warmroute serve: cannot listen: {error}")
            await self._leave_to_running_gateway()
            await self._give_back(self._config.timeouts.drain_s)
            return 1
        if self._handover_server is not None:
            loop.add_signal_handler(signal.SIGUSR2, self._start_successor)
        await self._over.wait()
        while self._handed_over and await self._successor_lost():
            await self._resume()
            await self._over.wait()
        await self._end()
        return 0

    # starting

    async def _start(self) -> None:
        path = self._config.takeover
        listeners = activated(self._environment, os.getpid())
        if path is not None:
            self._handover_client = await HandoverClient.find(path)
        self._system.begin()
        if self._handover_client is not None:
            listeners = await self._prepare(self._handover_client, listeners)
        await self._system.open(listeners)
        if self._handover_client is not None:
            await self._take_over(self._handover_client)
        await self._system.open_admin()
        if path is not None:
            self._handover_server = HandoverServer(path, self._callbacks())
            self._handover_server.start()
        self._notifier.ready(main_pid=os.getpid() if self._handover_client is not None else None)

    async def _prepare(self, handover_client: HandoverClient, passed: Listeners | None) -> Listeners:
        """Everything that can fail, while the running gateway still serves."""
        if passed is None:
            handover_client.check(self._config)
        self._system.handover_client = handover_client
        self._drain_alone(handover_client.offered.drained)
        await self._probe_workers(handover_client.offered.ready)
        if passed is None:
            return handover_client.listeners
        handover_client.listeners.close()
        return passed

    async def _take_over(self, handover_client: HandoverClient) -> None:
        self._drain_alone(await handover_client.drain())
        handover_client.follow(self._drained)
        self._system.leave_queue = self._system.listeners().held or handover_client.stuck
        log.info("took over", extra={"pid": handover_client.offered.pid})

    def _drain_alone(self, endpoint_ids: Sequence[str]) -> None:
        """What an operator drains in the other process is drained here, and nothing else: its worker may be about to be
        stopped."""
        fleet = self._system.fleet
        for endpoint in fleet.endpoints:
            (fleet.drain if endpoint.id in endpoint_ids else fleet.undrain)(endpoint.id)

    async def _probe_workers(self, ready_there: int) -> None:
        loop = asyncio.get_running_loop()
        limit_s = self._config.timeouts.takeover_ready_s
        end_s = loop.time() + limit_s
        while not self._over.is_set() and loop.time() < end_s and not self._workers_known():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        if self._over.is_set():
            raise TakeoverError("a signal came before the workers were probed; the running gateway goes on")
        if ready_there and not self._system.fleet.serving:
            raise TakeoverError(
                f"no worker is ready after {limit_s:g} s (timeouts.takeover_ready_s), where the running gateway has "
                f"{ready_there}; it goes on"
            )

    def _workers_known(self) -> bool:
        """Every worker has been probed, and one can take requests."""
        endpoints = self._system.fleet.endpoints
        probed = all(each.health.probed or each.state is WorkerState.DRAINING for each in endpoints)
        return probed and self._system.fleet.serving > 0

    async def _leave_to_running_gateway(self) -> None:
        """Our start has failed: the gateway that runs, or that we took over from just now, serves on."""
        if self._handover_client is not None:
            self._system.yield_listeners()
            await self._handover_client.aclose()

    # handing over

    def _callbacks(self) -> HandoverCallbacks:
        return HandoverCallbacks(
            offer=self._offer,
            withdraw=self._withdraw,
            hand_over=self._hand_over,
            in_flight=self._system.in_flight,
            drain_alone=self._drain_alone,
            drained=self._sent_nothing,
            superseded=self._superseded.set,
            lost=self._lost.set,
        )

    def _withdraw(self) -> None:
        self._system.handover_state = HandoverState.NONE

    def _offer(self) -> tuple[SocketsOffered, Sequence[socket.socket]]:
        listen_addresses, listeners = self._system.listen_addresses(), self._system.listeners()
        offered = SocketsOffered(
            version=VERSION,
            pid=os.getpid(),
            listen_addresses=listen_addresses,
            public=len(listeners.public),
            held=listeners.held,
            drained=self._drained(),
            ready=self._system.fleet.serving,
            resumes=True,
        )
        self._system.handover_state = HandoverState.OFFERED
        return offered, listeners.sockets

    def _drained(self) -> tuple[str, ...]:
        return tuple(each.id for each in self._system.fleet.endpoints if each.draining)

    def _sent_nothing(self) -> tuple[str, ...]:
        """Drained workers to which a gateway that we took over from sends nothing either."""
        return tuple(each for each in self._drained() if self._system.drained_everywhere(each))

    async def _hand_over(self, says_end: bool) -> tuple[str, ...]:
        self._drain_until_s = asyncio.get_running_loop().time() + self._config.timeouts.drain_s
        await self._system.hand_over(keep=says_end)
        if self._handover_client is not None:
            self._handover_client.say_ending()
        self._over.set()
        return self._drained()

    async def _successor_lost(self) -> bool:
        """Drain, for `LINGER_S` at least; True as soon as the process that took our place has died, and we can serve
        again."""
        await self._notifier.aclose()  # our successor speaks for the service
        log.info("handed over", extra={"drain_s": self._config.timeouts.drain_s})
        ends = [asyncio.ensure_future(each) for each in (self._lost.wait(), self._superseded.wait(), self._drain())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for each in ends:
            each.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        return self._lost.is_set() and not self._superseded.is_set() and self._system.can_resume

    async def _drain(self) -> None:
        left_s = self._drain_left_s
        linger_s = min(LINGER_S, left_s) if self._system.can_resume else 0.0
        with suppress(TimeoutError):
            await asyncio.wait_for(self._system.drained(), left_s)
        await asyncio.sleep(linger_s - (left_s - self._drain_left_s))

    @property
    def _drain_left_s(self) -> float:
        return max(0.0, self._drain_until_s - asyncio.get_running_loop().time())

    async def _resume(self) -> None:
        """Serve again, as before we handed over, with the workers drained that our successor last named."""
        self._lost.clear()
        try:
            await self._system.resume()
            assert self._handover_server is not None, "a successor took over"
            await self._handover_server.start_again()
        except OSError as error:
            log.error("cannot serve again", extra={"reason": str(error)})
            return
        except TakeoverError as error:
            log.error("serving again, but no successor can take over", extra={"reason": str(error)})
        if not self._signal:
            self._over.clear()
        self._notifier.ready(main_pid=os.getpid())
        log.warning("the gateway that took over has died; serving again")

    def _start_successor(self) -> None:
        """The same command again, as it is on disk now: it takes over, or ends and leaves us as we are."""
        command = [sys.executable, *sys.orig_argv[1:]]
        environment = {key: value for key, value in self._environment.items() if key not in _FOR_ONE_PROCESS}
        log.info("starting a successor")
        try:
            child = subprocess.Popen(command, env=environment)
        except OSError as error:
            log.error("the successor could not be started", extra={"reason": str(error)})
            return
        # a thread, since the event loop would kill a child of its own when it closes
        threading.Thread(target=_watch, args=(child,), daemon=True).start()

    # ending

    def _signalled(self) -> None:
        """The next one has its default effect."""
        for number in _ENDING:
            asyncio.get_running_loop().remove_signal_handler(number)
        self._signal = True
        self._superseded.set()
        self._over.set()

    async def _end(self) -> None:
        timeouts = self._config.timeouts
        if not self._handed_over:  # then our successor speaks for the service
            self._notifier.stopping()
        if self._handover_client is not None:
            self._handover_client.say_ending()
        log.info(
            "shutting down",
            extra={"handed_over": self._handed_over, "delay_s": timeouts.drain_delay_s, "drain_s": timeouts.drain_s},
        )
        if (
            self._system.handover_state is not HandoverState.NONE
        ):  # who starts in our place has our sockets, and accepts what waits
            self._system.leave_queue = True
        await self._give_back(self._drain_left_s if self._handed_over else timeouts.drain_s)

    @property
    def _handed_over(self) -> bool:
        return self._system.handover_state is HandoverState.DONE

    async def _give_back(self, drain_s: float) -> None:
        await self._system.aclose(drain_s)
        if self._handover_client is not None:
            # our successor learns from us what it still has, and a service manager may kill what outlives us
            await self._handover_client.ended(self._config.timeouts.drain_s)
            await self._handover_client.aclose()
        if self._handover_server is not None:
            await self._handover_server.aclose()
        await self._notifier.aclose()

    def _status(self) -> str:
        endpoints = self._system.fleet.endpoints
        return f"{self._system.fleet.serving} of {len(endpoints)} workers ready"


def _watch(child: subprocess.Popen[bytes]) -> None:
    code = child.wait()
    if code:
        log.error("the successor that was started here has ended", extra={"code": code})

"""The life cycle of one gateway process: start, takeover, drain, end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import uvloop

from router.admin.system import TakeoverState
from router.app import GatewayProcess
from router.config.model import Config
from router.config.problems import ConfigError
from router.control.change import NotAppliedError
from router.control.start import Sources
from router.placement.fleet.health import WorkerState
from router.process import signals
from router.process.front import ListeningFront
from router.process.listeners import Listeners
from router.process.systemd import Notifier, activated
from router.process.takeover.client import TakeoverClient
from router.process.takeover.messages import CARRIED, LEFT, VERSION, HandedState, SocketsOffered, TakeoverError
from router.process.takeover.server import TakeoverCallbacks, TakeoverServer
from router.requests.front import FrontContext, ListenError
from router.security.settings import warnings
from router.telemetry.logs import say

log = logging.getLogger("warmroute.process")

LINGER_S = 3.0
"""Minimum time that a gateway stays after a takeover. It serves again if the new process dies within this time."""
_LOOK_S = 0.02
_ENDING = (signal.SIGTERM, signal.SIGINT)
_FOR_ONE_PROCESS = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID")
"""Variables of a service manager that are meant for one process and not for its children."""


class Lifecycle:
    """Run `system` until a signal ends it or a new process has taken over."""

    def __init__(
        self, system: GatewayProcess, environment: Mapping[str, str] = os.environ, command: str = "serve"
    ) -> None:
        self._command = command
        self._system = system
        self._ports = system.ports
        self._config = system.config
        self._environment = environment
        self._over = asyncio.Event()
        self._signal = False
        self._superseded = asyncio.Event()
        """Set when this process must not serve again."""
        self._lost = asyncio.Event()
        """Set when the process that took over has died."""
        self._drain_until_s = 0.0
        self._takeover_client: TakeoverClient | None = None
        self._takeover_server: TakeoverServer | None = None
        self._handed: HandedState | None = None
        """The desired state that was offered to a successor."""
        self._notifier = Notifier(environment, self._status)

    async def run(self) -> int:
        """Serve and return the exit code. A second signal ends the process at once."""
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            loop.add_signal_handler(number, self._signalled)
        signals.handle(loop, self._signalled, lambda: self._system.control.reloads.soon("SIGHUP"))
        try:
            await self._start()
        except (ListenError, TakeoverError) as error:
            say(f"warmroute {self._command}: cannot listen: {error}")
            await self._leave_sockets()
            await self._give_back(self._config.timeouts.drain_s)
            return 1
        if self._takeover_server is not None:
            loop.add_signal_handler(signal.SIGUSR2, self._start_successor)
        await self._over.wait()
        while self._handed_over and await self._successor_lost():
            await self._resume()
            await self._over.wait()
        await self._end()
        return 0

    # start

    async def _start(self) -> None:
        path = self._config.takeover
        listeners = activated(self._environment, os.getpid())
        if path is not None:
            self._takeover_client = await TakeoverClient.find(path)
        self._system.begin()
        if self._takeover_client is not None:
            listeners = await self._prepare(self._takeover_client, listeners)
        await self._system.open(listeners)
        if self._takeover_client is not None:
            await self._take_over(self._takeover_client)
        await self._system.control.opened()
        await self._system.open_admin()
        if path is not None:
            self._takeover_server = TakeoverServer(path, self._callbacks())
            self._takeover_server.start()
        self._notifier.ready(main_pid=os.getpid() if self._takeover_client is not None else None)

    async def _prepare(self, takeover_client: TakeoverClient, passed: Listeners | None) -> Listeners:
        """Do everything that can fail while the running gateway still serves."""
        if passed is None:
            takeover_client.check(self._config)
        self._ports.takeover_client = takeover_client
        await self._take_on(takeover_client)
        await self._probe_workers(takeover_client.offered.ready)
        if passed is None:
            return takeover_client.listeners
        takeover_client.listeners.close()
        return passed

    async def _take_over(self, takeover_client: TakeoverClient) -> None:
        await takeover_client.drain()
        await self._take_on(takeover_client)
        fields = {
            "pid": takeover_client.offered.pid,
            "carried": ", ".join(CARRIED),
            "learned_again": ", ".join(LEFT),
            "drained_workers": len(self._drained()),
            "requests_left_there": sum(takeover_client.in_flight.values()),
            "workers": len(self._system.fleet.endpoints),
        }
        takeover_client.follow(self._drained)
        self._ports.leave_queue = self._ports.listeners().manager_owned or takeover_client.stuck
        log.info("took over", extra=fields)

    async def _take_on(self, takeover_client: TakeoverClient) -> None:
        """Continue from the desired state of the running gateway."""
        try:
            await self._system.control.take_over(takeover_client.state())
        except (ConfigError, NotAppliedError) as error:
            raise TakeoverError(f"the running gateway's desired state cannot be taken over: {error}") from None

    def _drain_alone(self, endpoint_ids: Sequence[str]) -> None:
        """Drain exactly these workers while another process serves and keeps the desired state."""
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
            raise TakeoverError("a signal came before the workers were probed; the running gateway keeps serving")
        if ready_there and not self._system.fleet.serving:
            raise TakeoverError(
                f"no worker is ready after {limit_s:g} s (timeouts.takeover_ready_s), but the running gateway has "
                f"{ready_there}; it keeps serving"
            )

    def _workers_known(self) -> bool:
        """Whether every worker has been probed and at least one takes requests."""
        endpoints = self._system.fleet.endpoints
        probed = all(each.health.probed or each.state is WorkerState.DRAINING for each in endpoints)
        return probed and self._system.fleet.serving > 0

    async def _leave_sockets(self) -> None:
        """Leave the sockets to the running gateway, because this start has failed."""
        if self._takeover_client is not None:
            self._ports.yield_listeners()
            await self._takeover_client.aclose()

    # handover

    def _callbacks(self) -> TakeoverCallbacks:
        return TakeoverCallbacks(
            offer=self._offer,
            withdraw=self._withdraw,
            release_listeners=self._release_listeners,
            in_flight=self._ports.in_flight,
            drain_alone=self._drain_alone,
            drained=self._idle_drained,
            superseded=self._superseded.set,
            lost=self._lost.set,
        )

    def _withdraw(self) -> None:
        self._forget_handed()
        self._ports.takeover_state = TakeoverState.NONE

    def _forget_handed(self) -> None:
        if self._handed is not None:
            self._handed.close()
            self._handed = None

    def _offer(self) -> tuple[SocketsOffered, Sequence[int]]:
        listen_addresses, listeners = self._ports.listen_addresses(), self._ports.listeners()
        offered = SocketsOffered(
            version=VERSION,
            pid=os.getpid(),
            listen_addresses=listen_addresses,
            public=len(listeners.public),
            manager_owned=listeners.manager_owned,
            ready=self._system.fleet.serving,
        )
        self._handed = HandedState()
        self._handed.write(self._system.control.stored)
        self._ports.takeover_state = TakeoverState.OFFERED
        return offered, [*(each.fileno() for each in listeners.sockets), self._handed.descriptor]

    def _drained(self) -> tuple[str, ...]:
        return tuple(each.id for each in self._system.fleet.endpoints if each.draining)

    def _idle_drained(self) -> tuple[str, ...]:
        """Return the drained workers that also receive no requests from the previous gateway."""
        return tuple(each for each in self._drained() if self._ports.drained_everywhere(each))

    async def _release_listeners(self) -> None:
        self._drain_until_s = asyncio.get_running_loop().time() + self._config.timeouts.drain_s
        await self._ports.release()
        if self._takeover_client is not None:
            self._takeover_client.say_ending()
        await self._yield_state()
        self._over.set()

    async def _yield_state(self) -> None:
        """Write the last version of the desired state for the successor."""
        assert self._handed is not None, "it was offered"
        self._handed.write(await self._system.control.yield_state())
        self._forget_handed()

    async def _successor_lost(self) -> bool:
        """Drain for at least `LINGER_S`. Return True at once if the new process dies and this one can serve again."""
        await self._notifier.aclose()  # the new process reports to the service manager
        handed = {"carried": ", ".join(CARRIED), "requests": sum(self._ports.in_flight().values())}
        log.info("handed over", extra={"drain_s": self._config.timeouts.drain_s, **handed})
        ends = [asyncio.ensure_future(each) for each in (self._lost.wait(), self._superseded.wait(), self._drain())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for each in ends:
            each.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        return self._lost.is_set() and not self._superseded.is_set() and self._ports.can_resume

    async def _drain(self) -> None:
        left_s = self._drain_left_s
        linger_s = min(LINGER_S, left_s) if self._ports.can_resume else 0.0
        with suppress(TimeoutError):
            await asyncio.wait_for(self._system.gateway.drained(), left_s)
        await asyncio.sleep(linger_s - (left_s - self._drain_left_s))

    @property
    def _drain_left_s(self) -> float:
        return max(0.0, self._drain_until_s - asyncio.get_running_loop().time())

    async def _resume(self) -> None:
        """Serve again as before the takeover, with the workers drained that the new process last named."""
        self._lost.clear()
        try:
            await self._system.control.resume(self._drained())
            await self._ports.resume()
            assert self._takeover_server is not None, "a new process took over"
            await self._takeover_server.start_again()
        except OSError as error:
            log.error("cannot serve again", extra={"reason": str(error)})
            return
        except TakeoverError as error:
            log.error("serving again, but no new process can take over", extra={"reason": str(error)})
        if not self._signal:
            self._over.clear()
        self._notifier.ready(main_pid=os.getpid())
        log.warning("the gateway that took over has died; serving again")

    def _start_successor(self) -> None:
        """Start the same command again, from its present files on disk. The new process takes over, or ends without a
        change here.
        """
        command = [sys.executable, *sys.orig_argv[1:]]
        environment = {key: value for key, value in self._environment.items() if key not in _FOR_ONE_PROCESS}
        log.info("starting a successor")
        try:
            child = subprocess.Popen(command, env=environment)
        except OSError as error:
            log.error("the successor could not be started", extra={"reason": str(error)})
            return
        # a thread, because the event loop would kill its own children when it closes
        threading.Thread(target=_watch, args=(child,), daemon=True).start()

    # end

    def _signalled(self) -> None:
        """End the process. The next signal has its default effect."""
        for number in _ENDING:
            asyncio.get_running_loop().remove_signal_handler(number)
        self._signal = True
        self._superseded.set()
        self._over.set()

    def end(self) -> None:
        """End the process, because there is nothing left to serve."""
        self._superseded.set()
        self._over.set()

    async def _end(self) -> None:
        timeouts = self._config.timeouts
        if not self._handed_over:  # the new process then reports to the service manager
            self._notifier.stopping()
        if self._takeover_client is not None:
            self._takeover_client.say_ending()
        log.info(
            "shutting down",
            extra={"handed_over": self._handed_over, "delay_s": timeouts.drain_delay_s, "drain_s": timeouts.drain_s},
        )
        if (
            self._ports.takeover_state is not TakeoverState.NONE
        ):  # the new process has the sockets and accepts the waiting connections
            self._ports.leave_queue = True
        await self._give_back(self._drain_left_s if self._handed_over else timeouts.drain_s)

    @property
    def _handed_over(self) -> bool:
        return self._ports.takeover_state is TakeoverState.DONE

    async def _give_back(self, drain_s: float) -> None:
        await self._system.aclose(drain_s)
        if self._takeover_client is not None:
            # The new process receives the requests of the old one from here, and a service manager may kill a process
            # that outlives this one.
            await self._takeover_client.ended(self._config.timeouts.drain_s)
            await self._takeover_client.aclose()
        if self._takeover_server is not None:
            await self._takeover_server.aclose()
        await self._notifier.aclose()

    def _status(self) -> str:
        endpoints = self._system.fleet.endpoints
        return f"{self._system.fleet.serving} of {len(endpoints)} workers ready"


def _watch(child: subprocess.Popen[bytes]) -> None:
    code = child.wait()
    if code:
        log.error("the successor that was started here has ended", extra={"code": code})


async def serve(
    config: Config,
    sources: Sources | None = None,
    front: Callable[[FrontContext], ListeningFront] | None = None,
    command: str = "serve",
) -> int:
    """Run one gateway until SIGTERM or SIGINT, or until a new process has taken over. A second signal ends it at
    once."""
    for warning in warnings(config):
        log.warning(warning)
    return await Lifecycle(GatewayProcess(config, sources=sources, front=front), command=command).run()


def run(
    config: Config,
    sources: Sources | None = None,
    front: Callable[[FrontContext], ListeningFront] | None = None,
    command: str = "serve",
) -> int:
    """Run one gateway in this process; return its exit code."""
    try:
        return uvloop.run(serve(config, sources, front, command))
    except KeyboardInterrupt:
        return 130

"""The code of a child process, which receives its configuration from the supervisor and serves until it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import uvloop

from router.config.model import Config
from router.process import signals
from router.process.children.accept_balancer import LeastConnections
from router.process.children.child_config import READY, ChildConfig, receive_config
from router.process.shared_memory.ledger import Ledger
from router.process.shared_memory.replica_rows import ledger_rows
from router.telemetry.logs import log_interpreter_messages, setup_logging


@dataclass(frozen=True, slots=True)
class ChildResources:
    """What a child process receives from its supervisor: its configuration `given`, with the sockets, which already
    listen, and the shared memory that it names.
    """

    given: ChildConfig
    public: Sequence[socket.socket]
    admin: socket.socket
    ledger: Ledger
    accept_order: LeastConnections


class ChildGateway(Protocol):
    """What a child process runs: `router.app.GatewayProcess`."""

    async def start(self) -> None: ...

    async def aclose(self) -> None:
        """Finish the requests within the drain deadline and release everything."""


Build = Callable[[Config, ChildResources], ChildGateway]
"""A function that makes the gateway of a child; the composition root passes it in."""


class StopTrigger:
    """Wait for a reason to stop: SIGTERM, or the end of the connection to the supervisor. Running requests may finish.

    If the connection ends after SIGTERM, the supervisor was killed or received a second signal. Then the process ends
    at once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, line: socket.socket) -> None:
        self._begun = asyncio.Event()
        self._loop = loop
        self._line = line
        line.setblocking(False)
        loop.add_reader(line, self._read)
        loop.add_signal_handler(signal.SIGTERM, self._begun.set)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(number, signals.say, number)

    async def wait(self) -> None:
        await self._begun.wait()

    def _read(self) -> None:
        try:
            if self._line.recv(1):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._loop.remove_reader(self._line)
        if self._begun.is_set():
            os._exit(1)
        self._begun.set()


async def serve(start: ChildConfig, line: socket.socket, build: Build) -> int:
    """Serve until the supervisor stops this process; return the exit code."""
    ending = StopTrigger(asyncio.get_running_loop(), line)
    system = build(start.config, resources_of(start))
    await system.start()
    line.send(READY)
    await ending.wait()
    await system.aclose()
    return 0


def resources_of(start: ChildConfig) -> ChildResources:
    """Return the sockets and the shared memory that `start` names by file descriptor."""
    ledger = Ledger(start.table, ledger_rows(start.config, start.processes), start.process)
    return ChildResources(
        start,
        public=[socket.socket(fileno=descriptor) for descriptor in start.public],
        admin=socket.socket(fileno=start.admin),
        ledger=ledger,
        accept_order=LeastConnections(ledger, start.processes, start.process),
    )


def main(line_descriptor: int, build: Build) -> int:
    """Run a child process on the supervisor's socket `line_descriptor`; return the exit code."""
    signals.ignore_until_handled()
    for number in (
        signal.SIGINT,
        signal.SIGHUP,
    ):  # a terminal sends these to all processes; the supervisor handles them
        signal.signal(number, signal.SIG_IGN)
    line = socket.socket(fileno=line_descriptor)
    try:
        start = receive_config(line)
    except EOFError:
        return 1
    setup_logging(start.config.log_level, start.config.log_format, process=start.process)
    log_interpreter_messages()
    return uvloop.run(serve(start, line, build))

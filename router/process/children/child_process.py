"""Keep one child process running: start it, wait for its end, start it again."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import router
from router.process.children.child_client import ChildClient
from router.process.children.child_config import ChildConfig, send_config

log = logging.getLogger("warmroute.process")

START_LIMIT_S = 60.0
"""A process that is not ready within this time is killed, which counts as a failure."""
STEADY_S = 5.0
"""The end of a process that has served for this time does not count as a failure."""
TRIES = 5
"""Consecutive failed starts before the supervisor gives up, if no other process serves."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True)
class ChildCallbacks:
    """Callbacks into the supervisor.

    `begin` receives the file descriptor of the child's admin socket, and starts the child with the current settings.
    `ready` reports that the child serves, and `ended` that it has ended.
    """

    begin: Callable[[int, int, Callable[[ChildConfig], Awaitable[None]]], Awaitable[None]]
    ready: Callable[[], None]
    ended: Callable[[int], None]


class ChildProcess:
    """One child process, by its number, over all its restarts. `client` is set while it serves."""

    def __init__(self, number: int, folder: Path, callbacks: ChildCallbacks, module: str) -> None:
        self.number = number
        self.client: ChildClient | None = None
        self.settled = asyncio.Event()
        """Set once the process serves or has ended; clear while it starts."""
        self.settled.set()
        self.failures = 0
        self._folder = folder
        self._callbacks = callbacks
        self._module = module
        self._starts = 0
        self._process: asyncio.subprocess.Process | None = None
        self._line: socket.socket | None = None
        self._stopping = asyncio.Event()

    async def keep(self) -> None:
        """Start the process, and start it again whenever it ends, until `stop`."""
        while not self._stopping.is_set():
            try:
                how = await self._run_once()
            except OSError as error:  # the system allows no more processes or sockets
                self.failures += 1
                how = f"it could not be started: {error}"
            self._callbacks.ended(self.number)
            if not self._stopping.is_set():
                log.error("process ended", extra={"process_index": self.number, "how": how})
                await self._pause()

    def stop(self) -> None:
        """Stop the process after its running requests, and do not start it again."""
        self._stopping.set()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process. `keep` then starts another."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _run_once(self) -> str:
        """Run the process once. Return how it ended."""
        path = self._folder / f"{self.number}-{self._starts}.sock"
        self._starts += 1
        try:
            with listening_at(path) as admin:
                await self._callbacks.begin(self.number, admin.fileno(), self._start)
            assert self._process is not None
            ready_s = await self._served(self._process, path)
            code = await self._process.wait()
            steady = ready_s is not None and asyncio.get_running_loop().time() - ready_s >= STEADY_S
            self.failures = 0 if steady else self.failures + 1
            return f"signal {-code}" if code < 0 else f"exit code {code}"
        finally:
            await self._clean_up(path)

    async def _start(self, start: ChildConfig) -> None:
        """Start a new interpreter, because threads and event loops do not survive a fork."""
        own_end, child_end = socket.socketpair()
        own_end.setblocking(False)
        self._line = own_end
        self.settled.clear()
        inherited = (child_end.fileno(), *start.public, start.admin, start.table)
        with child_end:
            self._process = await asyncio.create_subprocess_exec(
                *_command(self._module, child_end.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=inherited,
                start_new_session=True,  # Ctrl-C in a terminal must not reach it
                env={**os.environ, "PYTHONPATH": _python_path()},
            )
        if self._stopping.is_set():
            self._process.terminate()
        with suppress(OSError):  # the child has already died; its exit code gives the reason
            await send_config(own_end, start)

    async def _served(self, process: asyncio.subprocess.Process, path: Path) -> float | None:
        """Wait until the process serves. Return the time of that moment, or None if the process never served."""
        loop = asyncio.get_running_loop()
        assert self._line is not None
        try:
            ready = await asyncio.wait_for(loop.sock_recv(self._line, 1), START_LIMIT_S)
        except (OSError, TimeoutError):
            ready = b""
        if not ready:
            self.kill()
            return None
        self.client = ChildClient(self.number, path)
        self.settled.set()
        self._callbacks.ready()
        log.info("process ready", extra={"process_index": self.number, "pid": process.pid})
        return loop.time()

    async def _clean_up(self, path: Path) -> None:
        client, self.client = self.client, None
        self.settled.set()
        self._process = None
        if self._line is not None:
            self._line.close()
        path.unlink(missing_ok=True)
        if client is not None:
            await client.aclose()

    async def _pause(self) -> None:
        if not self.failures:
            return
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (self.failures - 1))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), pause_s)


def listening_at(path: Path) -> socket.socket:
    """Return a Unix socket at `path` that listens, for this user alone."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(64)
    return listener


def _command(module: str, line: int) -> Sequence[str]:
    # -P: a folder named router/ in the working directory must not shadow the installed package
    return [sys.executable, "-P", "-m", module, str(line)]


def _python_path() -> str:
    home = str(Path(router.__file__).parents[1])
    return os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])

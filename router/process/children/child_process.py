"""Keeps one process running: starts it, waits for its end, starts it again."""

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
from typing import Any

import router
from router.process.children.child_client import ChildClient
from router.process.children.child_config import ChildConfig, send_config

log = logging.getLogger("warmroute.process")

START_LIMIT_S = 60.0
"""A process that is not ready after so long is ended, and that counts as a failure."""
STEADY_S = 5.0
"""A process that served for so long has not failed at once."""
TRIES = 5
"""Failures in a row without once being ready before a process is given up, where no other serves."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True)
class ChildCallbacks:
    """What a keeper asks of the supervisor, and tells it. `begin` gets the file descriptor of a new process's admin
    socket, and starts it with the settings as they stand."""

    begin: Callable[[int, int, Callable[[ChildConfig], Awaitable[None]]], Awaitable[None]]
    ready: Callable[[], None]
    ended: Callable[[int], None]


class ChildProcess:
    """One process of several, by its number, over all its lives. `client` is there while it serves."""

    def __init__(self, number: int, folder: Path, callbacks: ChildCallbacks, module: str) -> None:
        self.number = number
        self.client: ChildClient | None = None
        self.settled = asyncio.Event()
        """Set while it is not being started: it serves, or is gone."""
        self.settled.set()
        self.failures = 0
        self.restarts = 0
        self._folder = folder
        self._callbacks = callbacks
        self._module = module
        self._lives = 0
        self._process: asyncio.subprocess.Process | None = None
        self._line: socket.socket | None = None
        self._stopping = asyncio.Event()

    async def keep(self) -> None:
        """Until `stop`: start it, and start it again whenever it ends."""
        while not self._stopping.is_set():
            try:
                how = await self._live()
            except OSError as error:  # no room for another process, or for its sockets
                self.failures += 1
                how = f"it could not be started: {error}"
            self._callbacks.ended(self.number)
            if not self._stopping.is_set():
                self.restarts += 1
                log.error("process ended", extra={"process_index": self.number, "how": how})
                await self._pause()

    def stop(self) -> None:
        """Have it finish its requests and end, and start no other."""
        self._stopping.set()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once; `keep` then starts another."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    def statistics(self) -> dict[str, Any]:
        """Whether it serves, its process id, and how often it had to be started again."""
        return {
            "serving": self.client is not None,
            "pid": self._process.pid if self._process is not None else None,
            "restarts": self.restarts,
        }

    async def _live(self) -> str:
        """One life, from start to end; returns how it ended."""
        path = self._folder / f"{self.number}-{self._lives}.sock"
        self._lives += 1
        try:
            with _admin_listener(path) as admin:
                await self._callbacks.begin(self.number, admin.fileno(), self._start)
            assert self._process is not None
            ready_s = await self._served(self._process, path)
            code = await self._process.wait()
            steady = ready_s is not None and asyncio.get_running_loop().time() - ready_s >= STEADY_S
            self.failures = 0 if steady else self.failures + 1
            return f"signal {-code}" if code < 0 else f"exit code {code}"
        finally:
            await self._bury(path)

    async def _start(self, start: ChildConfig) -> None:
        """Run a fresh interpreter: threads and event loops do not survive a fork."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._line = ours
        self.settled.clear()
        inherited = (theirs.fileno(), *start.public, start.admin, start.table)
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *_command(self._module, theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=inherited,
                start_new_session=True,  # Ctrl-C in a terminal must not reach it
                env={**os.environ, "PYTHONPATH": _python_path()},
            )
        if self._stopping.is_set():
            self._process.terminate()
        with suppress(OSError):  # it has died already; its exit code says more
            await send_config(ours, start)

    async def _served(self, process: asyncio.subprocess.Process, path: Path) -> float | None:
        """Wait until it serves; when that was, None: never."""
        loop = asyncio.get_running_loop()
        assert self._line is not None
        try:
            said = await asyncio.wait_for(loop.sock_recv(self._line, 1), START_LIMIT_S)
        except (OSError, TimeoutError):
            said = b""
        if not said:
            self.kill()
            return None
        self.client = ChildClient(self.number, path)
        self.settled.set()
        self._callbacks.ready()
        log.info("process ready", extra={"process_index": self.number, "pid": process.pid})
        return loop.time()

    async def _bury(self, path: Path) -> None:
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


def _admin_listener(path: Path) -> socket.socket:
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

"""The command after ``--``: vLLM as a child process of the sidecar."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

KILLED = 128
"""A process that a signal ended has this exit code plus the signal's number, as in a shell."""
NOT_STARTED = 127
_PR_SET_PDEATHSIG = 1
_OF_THE_SIDECAR = ("NOTIFY_SOCKET", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID", "WATCHDOG_USEC")
"""Variables of a service manager that are meant for one process."""

log = logging.getLogger("warmroute.sidecar")


class WorkerProcess:
    """A process in a session of its own, with the sidecar's input and output.

    Ctrl-C and a signal to the sidecar's group do not reach it: the sidecar drains first. If the sidecar dies, the
    system sends it SIGTERM. `on_end` is called once, when it has ended or could not be started.
    """

    def __init__(self, command: Sequence[str], on_end: Callable[[], None]) -> None:
        self._command = list(command)
        self._on_end = on_end
        self._process: asyncio.subprocess.Process | None = None
        self._ended: asyncio.Task[None] | None = None
        self._stopping = False
        self._code: int | None = None

    @property
    def exit_code(self) -> int | None:
        """The exit code as a shell gives it. None while the process runs, 0 if it ended as the sidecar had asked."""
        if self._stopping and self._code in (0, KILLED + signal.SIGTERM):
            return 0
        return self._code

    async def start(self, environment: Mapping[str, str] = os.environ) -> None:
        kept = {name: value for name, value in environment.items() if name not in _OF_THE_SIDECAR}
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, env=kept, start_new_session=True, preexec_fn=_end_with_parent()
            )
        except OSError as error:
            log.error("the command cannot be started", extra={"command": self._command[0], "reason": str(error)})
            self._code = NOT_STARTED
            self._on_end()
            return
        log.info("command started", extra={"command": self._command[0], "pid": self._process.pid})
        self._ended = asyncio.get_running_loop().create_task(self._wait(self._process), name="child")

    async def _wait(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        self._code = code if code >= 0 else KILLED - code
        level = logging.INFO if self._stopping else logging.ERROR
        log.log(level, "command ended", extra={"command": self._command[0], "code": self._code})
        self._kill_group(process.pid)
        self._on_end()

    async def stop(self, limit_s: float) -> None:
        """Send SIGTERM, and SIGKILL after `limit_s`; return when the process has ended."""
        if self._process is None or self._ended is None or self._code is not None:
            return
        self._stopping = True
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.shield(self._ended), limit_s)
        except TimeoutError:
            log.warning("command killed", extra={"command": self._command[0], "after_s": limit_s})
            self._kill_group(self._process.pid)
            await self._ended

    @staticmethod
    def _kill_group(pid: int) -> None:
        """Kill the process and those that it started, such as vLLM's engines."""
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _end_with_parent() -> Callable[[], None]:
    """Return a function for the child between fork and exec."""
    prctl = ctypes.CDLL(None).prctl  # loaded here, because a child must not allocate more than it has to

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return ask

"""systemd's protocols: sockets passed at start (sd_listen_fds), and messages to the service manager (sd_notify)."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress

from router.process.listeners import Listeners
from router.requests.front import ListenError

FIRST_DESCRIPTOR = 3
ADMIN = "admin"
"""FileDescriptorName= of the admin port's socket. Every other socket is public."""
STATUS_S = 1.0
"""Interval at which the status is compared with the last one sent."""


def activated(environment: Mapping[str, str], pid: int) -> Listeners | None:
    """Return the sockets that the service manager passed to this process, or None if it passed none.

    Raises:
        ListenError: a socket is not a listening stream socket, or none is public.
    """
    if environment.get("LISTEN_PID") != str(pid) or not environment.get("LISTEN_FDS", "").isdecimal():
        return None
    count = int(environment["LISTEN_FDS"])
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    named = [(names[index] if index < len(names) else "", FIRST_DESCRIPTOR + index) for index in range(count)]
    admin = [_listener(descriptor) for name, descriptor in named if name == ADMIN]
    public = [_listener(descriptor) for name, descriptor in named if name != ADMIN]
    if count and not public:
        raise ListenError(f"systemd passed no public socket; leave out FileDescriptorName={ADMIN} on one of them")
    if len(admin) > 1:
        raise ListenError(f"systemd passed {len(admin)} sockets named {ADMIN}; the admin port has one")
    return Listeners(tuple(public), admin[0] if admin else None, manager_owned=True) if count else None


def _listener(descriptor: int) -> socket.socket:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise ListenError(f"descriptor {descriptor} from systemd is no socket")
        passed = socket.socket(fileno=descriptor)
        listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        if isinstance(error, ListenError):
            raise
        raise ListenError(f"descriptor {descriptor} from systemd cannot be used: {error.strerror}") from None
    if passed.type != socket.SOCK_STREAM or not listening:
        raise ListenError(f"descriptor {descriptor} from systemd does not listen; write ListenStream= with Accept=no")
    passed.set_inheritable(False)
    passed.setblocking(False)
    return passed


class Notifier:
    """Report the state of the process to the service manager named by ``NOTIFY_SOCKET``. Without one, do nothing."""

    def __init__(self, environment: Mapping[str, str], status: Callable[[], str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._status = status
        self._last_status = ""
        self._task: asyncio.Task[None] | None = None
        self._watchdog_s = _watchdog_s(environment)

    def ready(self, *, main_pid: int | None = None) -> None:
        """Report that the gateway serves. `main_pid` replaces the process that the manager regards as the main one."""
        if self._address:
            self._last_status = self._status()
            lines = ["READY=1", f"STATUS={self._last_status}"]
            self._send(*([f"MAINPID={main_pid}"] if main_pid is not None else []), *lines)
            self._task = asyncio.get_running_loop().create_task(self._pulse(), name="notify")

    def stopping(self) -> None:
        """Report that the shutdown has begun."""
        self._send("STOPPING=1", "STATUS=draining")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _pulse(self) -> None:
        while True:
            await asyncio.sleep(min(STATUS_S, self._watchdog_s / 2) if self._watchdog_s else STATUS_S)
            status = self._status()
            if status != self._last_status:
                self._last_status = status
                self._send(f"STATUS={status}")
            if self._watchdog_s:
                self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        name = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out, suppress(OSError):
            out.setblocking(False)
            out.sendto("\n".join(lines).encode(), name)


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """Return ``WATCHDOG_USEC`` in seconds, or 0 if no keep-alive is expected.

    A gateway that starts its successor removes ``WATCHDOG_PID`` from the environment.
    """
    mine = environment.get("WATCHDOG_PID") in (None, str(os.getpid()))
    text = environment.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if mine and text.isdecimal() else 0.0

"""The running gateway's side of a takeover."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from router.gateway.listen.sockets import SocketFile, remove_socket_file, socket_file
from router.process.takeover.messages import (
    MOST_BYTES,
    DrainedWorkers,
    DrainStarted,
    InFlightReport,
    Message,
    SocketsOffered,
    SuccessorEnding,
    SuccessorReady,
    TakeoverError,
    TakeoverRefused,
    decode,
    encode,
    same_user,
)

REPORT_S = 0.02
"""Interval between two reports of requests in flight during the drain."""

log = logging.getLogger("warmroute.process")


@dataclass(frozen=True, slots=True)
class TakeoverCallbacks:
    """Callbacks into the running gateway.

    `offer` returns the descriptors to attach. It is followed by `withdraw` if the takeover fails, or by
    `release_listeners`. After that, `drain_alone` drains exactly the given workers, and `drained` returns the workers
    that receive no more requests. The last call is `superseded` if the successor ends in order, or `lost` if it dies.
    """

    offer: Callable[[], tuple[SocketsOffered, Sequence[int]]]
    withdraw: Callable[[], None]
    release_listeners: Callable[[], Awaitable[None]]
    in_flight: Callable[[], Mapping[str, int]]
    drain_alone: Callable[[Sequence[str]], None]
    drained: Callable[[], tuple[str, ...]]
    superseded: Callable[[], None]
    lost: Callable[[], None]


class TakeoverServer:
    """Listen at `path` for new processes. Serve one at a time; only one takes over."""

    def __init__(self, path: str, callbacks: TakeoverCallbacks) -> None:
        self._path = path
        self._callbacks = callbacks
        self._listener: socket.socket | None = None
        self._file: SocketFile | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._busy = False
        self._taken = False

    def start(self) -> None:
        """Listen at the path. The file of a previous gateway is replaced, so that something always listens there.

        Raises:
            TakeoverError: the path cannot be used.
        """
        try:
            self._listener = _listen(self._path)
        except OSError as error:
            raise TakeoverError(f"{self._path}: {error.strerror}; write another path (--takeover)") from None
        self._file = socket_file(self._path)
        self._accepting = self._spawn(self._accept(self._listener))

    async def start_again(self) -> None:
        """Listen again after the successor was lost. The path may be the successor's.

        Raises:
            TakeoverError: the path cannot be used.
        """
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        self._taken = False
        self.start()

    async def aclose(self) -> None:
        """Stop listening. A process that received the sockets sees the end of the connection."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        if self._file is not None:
            remove_socket_file(self._file)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("a successor could not be accepted", extra={"reason": str(error)})
                await asyncio.sleep(1.0)
                continue
            self._spawn(self._serve(connection))

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            if not same_user(connection):
                log.warning("a process of another user asked for the listening sockets")
            elif self._busy or self._taken:
                await _send(connection, TakeoverRefused("another process is taking over"))
            else:
                self._busy = True
                try:
                    await self._release_listeners(connection)
                except (OSError, TakeoverError) as error:
                    log.warning("takeover failed", extra={"reason": str(error)})
                finally:
                    self._busy = False
                    if not self._taken:
                        self._callbacks.withdraw()

    async def _release_listeners(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        offered, descriptors = self._callbacks.offer()
        socket.send_fds(connection, [encode(offered)], list(descriptors))
        packet = await asyncio.get_running_loop().sock_recv(connection, MOST_BYTES)
        if not packet:
            log.warning("a new process ended before it was ready; this one keeps serving")
        elif isinstance(decode(packet), SuccessorReady):
            self._taken = True
            await self._callbacks.release_listeners()
            if not await self._accompany(connection):
                self._callbacks.lost()

    async def _accompany(self, connection: socket.socket) -> bool:
        """Serve the successor until it closes the connection. Return whether it announced its end."""
        ending = False
        try:
            await _send(connection, DrainStarted(dict(self._callbacks.in_flight())))
            self._spawn(self._report(connection))
            while packet := await asyncio.get_running_loop().sock_recv(connection, MOST_BYTES):
                message = decode(packet)
                if isinstance(message, DrainedWorkers):
                    self._callbacks.drain_alone(message.workers)
                elif isinstance(message, SuccessorEnding):
                    ending = True
                    self._callbacks.superseded()
        except OSError:  # it closed the connection before it had read all reports
            pass
        except TakeoverError:  # the successor runs, but speaks another version of the protocol
            self._callbacks.superseded()
            raise
        return ending

    async def _report(self, connection: socket.socket) -> None:
        """Send the requests in flight until this process or the successor ends."""
        sent: InFlightReport | None = None
        with suppress(OSError):
            while connection.fileno() >= 0:
                now = InFlightReport(dict(self._callbacks.in_flight()), self._callbacks.drained())
                if now != sent:
                    sent = now
                    await _send(connection, now)
                await asyncio.sleep(REPORT_S)


async def _send(connection: socket.socket, message: Message) -> None:
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(connection, encode(message))


def _listen(path: str) -> socket.socket:
    """Return a socket at `path`, for this user only. It replaces the old file once it listens."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise TakeoverError(f"{path}: a file that is no socket is there; remove it, or write another path")
    new = f"{path}.{os.getpid() % 1_000_000}"
    with suppress(FileNotFoundError):
        os.unlink(new)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.setblocking(False)
        os.fchmod(listener.fileno(), 0o600)  # on Linux the file gets the socket's mode
        listener.bind(new)
        listener.listen(16)
        os.rename(new, path)
    except OSError:
        listener.close()
        raise
    return listener

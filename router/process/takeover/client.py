"""The new process's side of a takeover."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

from router.config.model import Config
from router.control.state_file import Stored
from router.process.listeners import ListenAddresses, Listeners
from router.process.takeover.messages import (
    MOST_BYTES,
    MOST_SOCKETS,
    VERSION,
    DrainedWorkers,
    DrainStarted,
    HandedState,
    InFlightReport,
    SocketsOffered,
    SuccessorEnding,
    SuccessorReady,
    TakeoverError,
    TakeoverRefused,
    decode,
    encode,
    same_user,
)

LOOK_S = 0.02
"""Interval between two checks for newly drained workers."""
ANSWER_S = 10.0
"""Time limit for an answer of the running gateway."""

log = logging.getLogger("warmroute.process")


class TakeoverClient:
    """The connection to the running gateway.

    `in_flight` counts the running gateway's requests at each worker. `gone` is set once that gateway has ended.
    """

    def __init__(
        self,
        connection: socket.socket,
        offered: SocketsOffered,
        listeners: Listeners,
        handed: HandedState,
    ) -> None:
        self._connection = connection
        self._handed = handed
        self._tasks: list[asyncio.Task[None]] = []
        self._drained: frozenset[str] = frozenset()
        self.offered = offered
        self.listeners = listeners
        self.in_flight: Mapping[str, int] = {}
        self.gone = asyncio.Event()
        self.stuck = False
        """Whether the running gateway has not answered, so that it may still accept."""

    @classmethod
    async def find(cls, path: str) -> TakeoverClient | None:
        """Ask the gateway that listens at `path` for its sockets. Return None if no gateway listens there.

        Raises:
            TakeoverError: a gateway listens, and its sockets cannot be taken.
        """
        connection = _connect(path)
        if connection is None:
            return None
        try:
            if not same_user(connection):
                raise TakeoverError(f"{path} belongs to another user's process; run both as the same user")
            connection.settimeout(ANSWER_S)
            return cls(connection, *await asyncio.to_thread(_receive_offer, connection))
        except BaseException:
            connection.close()
            raise

    def check(self, config: Config) -> None:
        """Check that the offered sockets have the addresses in `config`.

        Raises:
            TakeoverError: `config` names other addresses.
        """
        running_at = self.offered.listen_addresses
        running = f"the running gateway (pid {self.offered.pid})"
        moved = running_at.uds != config.uds and not self.offered.manager_owned
        if moved or _differs(running_at.host, running_at.port, config.host, config.port):
            raise TakeoverError(
                f"{running} has its public port at {_public(running_at)}, and this one is configured for "
                f"{config.uds or f'{config.host}:{config.port}'}; write the same, or stop the running one first"
            )
        if _differs(running_at.admin_host, running_at.admin_port, config.admin_host, config.admin_port):
            raise TakeoverError(
                f"{running} has its admin port at {running_at.admin_host}:{running_at.admin_port}, and this one is "
                f"configured for {config.admin_host}:{config.admin_port}; write the same, or stop the running one first"
            )

    def state(self) -> Stored:
        """Return the desired state of the running gateway.

        Raises:
            TakeoverError: it was written by a version that this one cannot read.
        """
        try:
            return self._handed.read()
        except (OSError, ValueError) as error:
            raise TakeoverError(f"the running gateway's desired state cannot be read: {error}") from None

    def drains(self, worker_id: str) -> bool:
        """Return whether the running gateway sends no more requests to a worker."""
        return self.gone.is_set() or worker_id in self._drained

    async def drain(self) -> None:
        """Report that this process accepts, and wait until the other process has stopped accepting."""
        loop = asyncio.get_running_loop()
        self._connection.setblocking(False)
        try:
            await loop.sock_sendall(self._connection, encode(SuccessorReady()))
            async with asyncio.timeout(ANSWER_S):
                answer = decode(await loop.sock_recv(self._connection, MOST_BYTES) or b"{}")
            if isinstance(answer, DrainStarted):
                self.in_flight = answer.requests
        except TimeoutError:
            self.stuck = True
            log.error("the gateway that was taken over does not answer; stop it", extra={"pid": self.offered.pid})
        except (OSError, TakeoverError):
            log.warning("the gateway that was taken over has died", extra={"pid": self.offered.pid})

    def follow(self, drained: Callable[[], tuple[str, ...]]) -> None:
        """After `drain`, send the workers drained here, and receive the counts of requests that the other process still
        has.
        """
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._receive()), loop.create_task(self._send_drained(drained))]

    async def _send_drained(self, drained: Callable[[], tuple[str, ...]]) -> None:
        loop = asyncio.get_running_loop()
        sent: tuple[str, ...] | None = None
        with suppress(OSError):  # `_receive` notices the end of the other process
            while not self.gone.is_set():
                if (now := drained()) != sent:
                    sent = now
                    await loop.sock_sendall(self._connection, encode(DrainedWorkers(now)))
                await asyncio.sleep(LOOK_S)

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while packet := await loop.sock_recv(self._connection, MOST_BYTES):
                message = decode(packet)
                if isinstance(message, InFlightReport):
                    self.in_flight, self._drained = message.requests, frozenset(message.drained)
        except (OSError, TakeoverError) as error:
            log.warning("lost sight of the gateway that was taken over", extra={"reason": str(error)})
        self.in_flight = {}
        self.gone.set()

    def say_ending(self) -> None:
        """After `drain`, report that this process ends or was replaced, so that the other process does not serve
        again.
        """
        if self._tasks:
            with suppress(OSError):  # the other process has ended
                self._connection.send(encode(SuccessorEnding()))

    async def ended(self, limit_s: float) -> None:
        """Wait until the other process has ended, if it drains. It started to drain before this process."""
        if not self._tasks:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self.gone.wait(), limit_s)

    async def aclose(self) -> None:
        """Close the connection.

        Before `drain` the other gateway continues as before. After `drain` it serves again, unless `say_ending` was
        called.
        """
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._handed.close()
        self._connection.close()


def _connect(path: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        raise TakeoverError(f"{path}: {error.strerror}; write another path (--takeover)") from None
    return connection


def _receive_offer(connection: socket.socket) -> tuple[SocketsOffered, Listeners, HandedState]:
    try:
        packet, descriptors, _, _ = socket.recv_fds(connection, MOST_BYTES, MOST_SOCKETS)
    except TimeoutError:
        raise TakeoverError(f"the running gateway did not answer within {ANSWER_S:.0f} s; is it stuck?") from None
    except OSError as error:
        raise TakeoverError(f"the running gateway went away: {error.strerror}; start again") from None
    try:
        offered = _decode_offer(packet, len(descriptors))
    except TakeoverError:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    handed = HandedState(descriptors.pop())
    sockets = tuple(map(_owned, descriptors))
    admin = sockets[offered.public] if len(sockets) > offered.public else None
    return offered, Listeners(sockets[: offered.public], admin, offered.manager_owned), handed


def _owned(descriptor: int) -> socket.socket:
    received = socket.socket(fileno=descriptor)
    received.set_inheritable(False)
    received.setblocking(False)
    return received


def _decode_offer(packet: bytes, descriptors: int) -> SocketsOffered:
    if not packet:
        raise TakeoverError("the running gateway closed the connection: it runs as another user, or is ending")
    message = decode(packet)
    if isinstance(message, TakeoverRefused):
        raise TakeoverError(f"the running gateway refused: {message.reason}")
    if not isinstance(message, SocketsOffered) or message.version != VERSION or not 1 <= message.public < descriptors:
        raise TakeoverError("the running gateway offers what this version does not know; stop it first")
    return message


def _differs(host: str | None, port: int, wanted_host: str, wanted_port: int) -> bool:
    """Return whether a wanted address differs. `host` is None if a service manager chose the sockets."""
    return host is not None and (host != wanted_host or wanted_port not in (0, port))


def _public(addresses: ListenAddresses) -> str:
    return addresses.uds or f"{addresses.host}:{addresses.port}"

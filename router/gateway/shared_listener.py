"""A listening socket that several processes accept from, the least loaded one first.

All of them poll the one socket. SO_REUSEPORT would give each its own queue and have a hash of the addresses choose:
with few long connections some processes then get most of them. Here a process that has more connections than another
lets that one go first, and looks again a moment later, so that one that hangs cannot keep clients out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger("warmroute.gateway")

STEP_BACK_S = 0.001
"""How long we leave a waiting client to the others before we look again."""
PATIENCE_S = 0.05
"""So long after, with nobody having taken any, those whose turn it is are taken for stuck. Until they take one again,
we take one at each look, and no more: they may only be slow, and then the rest is theirs."""
EXHAUSTED_S = 0.5
"""Pause after an accept that the system refused (no file descriptors, no memory)."""


class Turns(Protocol):
    """Who is to take the next connection."""

    def open(self) -> None:
        """We begin to take connections."""

    def close(self) -> None:
        """We take no more."""

    def ours(self) -> bool:
        """Whether it is our turn."""

    def taken_by_others(self) -> int:
        """A number that changes while others take connections."""

    def took(self) -> None:
        """We have taken one."""

    def left(self) -> None:
        """One of ours has closed."""


class SharedListener:
    """Accepts from `listener` when it is our turn, until `close`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: Callable[[], asyncio.BaseProtocol],
        listener: socket.socket,
        turns: Turns,
        tls: ssl.SSLContext | None = None,
        tls_handshake_s: float | None = None,
    ) -> None:
        self._secure = (None, None) if listener.family == socket.AF_UNIX else (tls, tls_handshake_s)
        self._loop = loop
        self._connection = connection
        self._listener = listener
        self._turns = turns
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._since_s: float | None = None
        self._taken = 0
        self._listener.setblocking(False)
        self._turns.open()
        self._watch()

    def close(self) -> None:
        """Accept no more. Clients in the queue are left to the other processes."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._turns.close()
        self._listener.close()

    def _watch(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._readable)

    def _readable(self) -> None:
        if self._turns.ours():
            self._since_s = None
            self._accept()
            return
        self._step_back(STEP_BACK_S)
        if self._waited_s() >= PATIENCE_S:
            self._accept()

    def _waited_s(self) -> float:
        """How long the others have let a client wait."""
        now_s = self._loop.time()
        taken = self._turns.taken_by_others()
        if self._since_s is None or taken != self._taken:
            self._since_s, self._taken = now_s, taken
        return now_s - self._since_s

    def _step_back(self, for_s: float) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(for_s, self._watch)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # another process was quicker
            return
        except OSError as error:
            log.error("cannot accept connections", extra={"reason": str(error)})
            self._step_back(EXHAUSTED_S)
            return
        client.setblocking(False)
        self._turns.took()
        task = self._loop.create_task(self._open(client, self._connection()), name="accepted")
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, client: socket.socket, connection: asyncio.BaseProtocol) -> None:
        try:
            tls, handshake_s = self._secure
            await self._loop.connect_accepted_socket(
                lambda: connection, client, ssl=tls, ssl_handshake_timeout=handshake_s
            )
        except OSError:  # it has gone already
            client.close()
            self._turns.left()

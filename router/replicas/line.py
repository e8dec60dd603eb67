"""The line to Redis: one subscription, one writer, and the replica's own echo as the proof that both work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from router.replicas.connection import RedisClient

log = logging.getLogger("warmroute.replicas")

ECHO_S = 1.0
"""Without its own message back for this time, a replica is alone, and connects again."""
PAUSE_S = 0.2
"""Time between two attempts to connect."""
_LOOK_S = 0.25
_CANCELS = 20
_BURST_S = 0.005
"""Messages may take this time of the event loop in one piece."""
_REST = 3
"""Then the reader rests this many times as long as they took: a flood of messages gets a quarter of the time. Redis
ends a subscription that stays behind."""


async def ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks, and again while they go on: the library's timeouts can swallow a cancellation."""
    running = {task for task in tasks if not task.done()}
    for _ in range(_CANCELS):
        if not running:
            return
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_LOOK_S)


class Line:
    """Send what `take` returns every `interval_s`, and pass each message to `receive`.

    All send at multiples of the interval on the clock, so that a receiver wakes up once for several messages.
    `receive` returns whether a message was this process's own. None of the three may raise.
    """

    def __init__(
        self,
        client: RedisClient,
        channel: str,
        take: Callable[[float], bytes | None],
        receive: Callable[[bytes, float], bool],
        lost: Callable[[], None],
        interval_s: Callable[[], float],
    ) -> None:
        self._client = client
        self._channel = channel
        self._take = take
        self._receive = receive
        self._lost = lost
        self._interval_s = interval_s
        self._echo_s = 0.0
        self._since_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._alone = True
        self._problem = ""
        self.sent = self.received = self.errors = 0

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._write(), name="replicas: writer"),
            asyncio.create_task(self._read(), name="replicas: reader"),
        ]

    async def aclose(self) -> None:
        await ended(self._tasks)

    @property
    def alone(self) -> bool:
        """Whether the line does not work in both directions now."""
        return asyncio.get_running_loop().time() - self._echo_s > ECHO_S or not self._echo_s

    @property
    def problem(self) -> str:
        """The last error; empty while the line works."""
        return self._problem if self.alone else ""

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            interval_s = self._interval_s()
            await asyncio.sleep(interval_s - time.time() % interval_s)
            try:
                self._tell()
                if (message := self._take(loop.time())) is not None:
                    await self._client.publish(self._channel, message)
                    self.sent += 1
            except Exception as error:  # of the library, of TLS or of the system
                self._failed(error)
                self._lost()
                await asyncio.sleep(PAUSE_S)

    async def _read(self) -> None:
        while True:
            try:
                await self._listen()
            except Exception as error:  # as above
                self._failed(error)
            await asyncio.sleep(PAUSE_S)

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        subscription: Any = self._client.pubsub()  # partly without types
        try:
            await subscription.subscribe(self._channel)
            self._since_s = loop.time()
            owed_s, ended_s = 0.0, loop.time()
            while loop.time() - max(self._since_s, self._echo_s) <= ECHO_S:
                message = await subscription.get_message(timeout=_LOOK_S)
                began_s = loop.time()
                if message is not None and message["type"] == "message":
                    self.received += 1
                    if self._receive(message["data"], began_s):
                        self._echo_s = began_s
                owed_s = max(0.0, owed_s - (began_s - ended_s) / _REST) + loop.time() - began_s
                if owed_s > _BURST_S:
                    await asyncio.sleep(_REST * owed_s)
                    owed_s = 0.0
                ended_s = loop.time()
        finally:
            with suppress(Exception):
                await subscription.aclose()
        raise TimeoutError(f"no message came back for {ECHO_S:g} s")

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        self._problem = " ".join(str(error).split()) or type(error).__name__

    def _tell(self) -> None:
        """Log that this replica is alone, or no longer is."""
        if self._alone == self.alone:
            return
        self._alone = self.alone
        if self._alone:
            log.warning("alone: Redis does not answer, and this replica goes on with what it has", extra=self._reason)
        else:
            log.info("Redis answers: this replica shares its state")

    @property
    def _reason(self) -> dict[str, str]:
        return {"reason": self._problem}

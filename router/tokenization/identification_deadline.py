"""How long an identification may take, and what becomes of one that takes longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from router.tokenization.intake import ParsedBody
from router.tokenization.threads import TokenizerTask

T = TypeVar("T")

LIMIT_S = 0.25
LIMIT_S_PER_BYTE = 3e-6
MAX_LIMIT_S = 3.0


class IdentificationTimeout(Exception):
    """Identification has taken as long as it may."""


def limit_s(size_bytes: int) -> float:
    """How long the identification of a body may take, its wait for a thread included. A worker computes a long prompt
    for seconds, so that knowing it is worth a longer wait."""
    return min(MAX_LIMIT_S, LIMIT_S + size_bytes * LIMIT_S_PER_BYTE)


class IdentificationDeadline:
    """Waits for identifications. One that is late goes on without anybody waiting for it if a thread is at work on it,
    so that what comes of it is remembered; else it is cancelled."""

    def __init__(self, limit_s: Callable[[int], float]) -> None:
        self._limit_s = limit_s
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._late = 0

    async def wait(self, parsed: ParsedBody, work: Callable[[], Awaitable[T]], *, asks_worker: bool = False) -> T:
        """What `work` comes to. `asks_worker`: it is a worker that tokenises, whose question has a limit of its own.

        Raises:
            IdentificationTimeout: it is not in time.
        """
        task: asyncio.Task[T] = asyncio.get_running_loop().create_task(_run(work))
        limit_s = MAX_LIMIT_S if asks_worker else self._limit_s(parsed.size_bytes)
        try:
            await asyncio.wait((task,), timeout=limit_s)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            try:
                return task.result()
            finally:
                # an error keeps this frame, which would keep the task, which keeps the error, and all that was decoded
                del task
        self._late += 1
        begun = parsed.pending
        if isinstance(begun, TokenizerTask) and begun.running:
            self._unfinished.add(task)
            task.add_done_callback(self._finished)
        else:
            task.cancel()
        raise IdentificationTimeout("identification took too long")

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._unfinished.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not log it: the request has gone on long ago

    def close(self) -> None:
        """Let go of what nobody waits for."""
        for task in self._unfinished:
            task.cancel()

    def statistics(self) -> dict[str, int]:
        """Identifications that came too late."""
        return {"late": self._late}


async def _run(work: Callable[[], Awaitable[T]]) -> T:
    return await work()

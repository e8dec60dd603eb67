"""The time limit of an identification, and the handling of a late one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from router.tokenization.body.parsed_body import ParsedBody

T = TypeVar("T")

LIMIT_S = 0.25
LIMIT_S_PER_BYTE = 3e-6
MAX_LIMIT_S = 3.0


class IdentificationTimeout(Exception):
    """Identification has reached its time limit."""


def limit_s(size_bytes: int) -> float:
    """Return how long the identification of a body may take, including its wait for a thread.

    A worker computes a long prompt for seconds, so the identity of a long prompt is worth a longer wait.
    """
    return min(MAX_LIMIT_S, LIMIT_S + size_bytes * LIMIT_S_PER_BYTE)


class IdentificationDeadline:
    """Wait for identifications.

    A late one is cancelled, unless a thread already works on it. Then it continues in the background, and its result is
    remembered.
    """

    def __init__(self, limit_s: Callable[[int], float]) -> None:
        self._limit_s = limit_s
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._late = 0

    async def wait(self, parsed: ParsedBody, work: Callable[[], Awaitable[T]], *, asks_worker: bool = False) -> T:
        """Return the result of `work`. With `asks_worker` a worker tokenises, under a separate limit.

        Raises:
            IdentificationTimeout: the limit has passed.
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
                # The error's traceback keeps this frame alive, the frame keeps the task, and the task the error and the
                # decoded body.
                del task
        self._late += 1
        if parsed.task is not None and parsed.task.running:
            self._unfinished.add(task)
            task.add_done_callback(self._finished)
        else:
            task.cancel()
        raise IdentificationTimeout("identification took too long")

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._unfinished.discard(task)
        if not task.cancelled():
            task.exception()  # Retrieved so that asyncio does not log it; the request has continued without it.

    def close(self) -> None:
        for task in self._unfinished:
            task.cancel()

    def statistics(self) -> dict[str, int]:
        return {"late": self._late}


async def _run(work: Callable[[], Awaitable[T]]) -> T:
    return await work()

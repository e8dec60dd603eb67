"""Routing probes in progress, of which an admin port answers a few at a time, each for a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, TypeVar

from router.admin.http.problems import AdminError

MOST_PROBES = 4
"""As Dynamo's picker: a prompt may take a core for tens of milliseconds, and requests come first."""
LIMIT_S = 1.0
T = TypeVar("T")


class ProbeSlots:
    """The routing probes of one port whose work has not ended.

    A tokenizer's thread cannot be cancelled. So work goes on after its answer is overdue, and keeps its slot: a client
    that asks again and again leaves no work behind that nobody counts. The next probe of that prompt is then fast.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._running: set[asyncio.Task[Any]] = set()

    async def result(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what `work` returns.

        Raises:
            AdminError: 429, all slots are taken; 504, the work takes too long.
            Exception: that of the work.
        """
        if len(self._running) >= MOST_PROBES:
            detail = f"{MOST_PROBES} routing probes are in progress, which is the limit; none is queued"
            headers = {"retry-after": "1"}
            raise AdminError(HTTPStatus.TOO_MANY_REQUESTS, "too_many_probes", detail, headers=headers)
        task = asyncio.create_task(work())
        self._running.add(task)
        task.add_done_callback(self._ended)
        await asyncio.wait({task}, timeout=self._limit_s)
        if not task.done():
            detail = f"the prompt is not identified after {self._limit_s:g} s; ask again later"
            raise AdminError(HTTPStatus.GATEWAY_TIMEOUT, "probe_timeout", detail)
        return task.result()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # read, so that asyncio does not report the error of overdue work

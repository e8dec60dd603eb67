"""A fair share of the event loop for connections that pipeline requests. One read may carry thousands of them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from time import perf_counter
from typing import Protocol

REQUESTS_PER_ITERATION = 32
"""Most pipelined requests handled per event-loop iteration, over all connections."""
ITERATION_S = 0.002
"""Time after which an iteration handles no further pipelined request."""

log = logging.getLogger("warmroute.gateway")


class PipelinedConnection(Protocol):
    """A connection with unread bytes of further requests."""

    def serve_next(self) -> None:
        """Handle one request; call `PipelineScheduler.add` again if more bytes are left."""


class PipelineScheduler:
    """A FIFO queue of connections with unread requests, each served one request at a time.

    Without it, a connection that pipelines requests for local answers would be served until its bytes run out, while
    all other connections wait. A connection handles the first request of a read directly. All others pass through
    here, a bounded number per iteration.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, iteration_s: float = ITERATION_S) -> None:
        self._call_soon = loop.call_soon
        self._iteration_s = iteration_s
        self._scheduled = False
        self._waiting: deque[PipelinedConnection] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, connection: PipelinedConnection) -> None:
        """Queue `connection`, which must not be queued already."""
        self._waiting.append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._run)

    def _run(self) -> None:
        waiting = self._waiting
        end_s = perf_counter() + self._iteration_s
        taken = 0
        while waiting and taken < REQUESTS_PER_ITERATION and (not taken or perf_counter() < end_s):
            taken += 1
            try:
                waiting.popleft().serve_next()
            except Exception:
                log.exception("pipelined request failed")
        self._scheduled = False
        if waiting:
            self._schedule()

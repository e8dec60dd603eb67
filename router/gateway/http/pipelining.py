"""Requests that have been read and wait for their turn: one connection may bring thousands of them in one read."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from time import perf_counter
from typing import Protocol

REQUESTS_PER_ITERATION = 32
"""Requests taken from the backlog of all connections together in one turn of the loop."""
TURN_S = 0.002
"""Fewer are taken where they take longer than this."""

log = logging.getLogger("warmroute.gateway")


class PipelinedConnection(Protocol):
    """A connection that has bytes of further requests."""

    def serve_next(self) -> None:
        """Handle one request; call `PipelineScheduler.add` again where more bytes are there."""
        ...


class PipelineScheduler:
    """Connections that have bytes of further requests, in the order in which they take turns.

    Without it a connection that pipelines requests which the gateway answers itself would be served until its bytes
    are used up, and every other connection would wait. A connection takes one request per read directly; everything
    beyond that passes through here, a bounded number per turn of the event loop.
    """

    __slots__ = ("_call_soon", "_scheduled", "_turn_s", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, turn_s: float = TURN_S) -> None:
        self._call_soon = loop.call_soon
        self._turn_s = turn_s
        self._scheduled = False
        self._waiting: deque[PipelinedConnection] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, connection: PipelinedConnection) -> None:
        """`connection` takes a turn after those that wait already. It must not be added twice."""
        self._waiting.append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._run)

    def _run(self) -> None:
        waiting = self._waiting
        end_s = perf_counter() + self._turn_s
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

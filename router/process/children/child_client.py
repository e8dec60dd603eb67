"""Call a child process over its private Unix socket, which serves the child's admin API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx

from router.admin.replies import Reply

READ_S = 5.0
"""Time limit of a read. A process that takes longer is left out."""
STRAGGLER_S = 1.0
"""How much longer than the first reply to a read those of the other processes may take, or twice its time if that is
more. A process that is stopped would otherwise delay every read by `READ_S`."""
CHANGE_S = 10.0
"""Time limit of a change. A process that takes longer is considered stuck."""
MAX_REPLY_BYTES = 256 << 20
"""The largest reply that is read. The longest is a full decision log of a large fleet."""
STATE_VERSION = "x-warmroute-state-version"
"""Header of every reply: the version of the desired state that the process runs."""
_LIMITS = httpx.Limits(max_connections=16, max_keepalive_connections=4)


class NoReplyError(Exception):
    """A process did not answer: it is stuck or has just died."""


class ChildRequest(NamedTuple):
    """One request to a process. `body` is JSON."""

    method: str
    path: str
    query: Mapping[str, int | str] = {}
    body: bytes | None = None


class ChildClient:
    """HTTP client of one child process. Connections are kept; if the process dies, further calls fail at once.

    Each call has a time limit and a size limit, and the number of concurrent calls is limited.
    """

    def __init__(self, number: int, path: Path) -> None:
        self.number = number
        self.state_version: str | None = None
        """The version of the desired state in the last reply; None before the first."""
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(path), limits=_LIMITS),
            base_url="http://process",
            trust_env=False,
        )

    async def ask(self, request: ChildRequest, limit_s: float = READ_S) -> Reply:
        """Return the reply, of any status.

        Raises:
            NoReplyError: no reply came within `limit_s`, or it was too large.
        """
        headers = {"content-type": "application/json"} if request.body is not None else {}
        outgoing = self._client.build_request(
            *(request.method, request.path),
            params=dict(request.query),
            content=request.body,
            headers=headers,
            timeout=None,
        )
        try:
            async with asyncio.timeout(limit_s):
                return await self._read(outgoing)
        except (httpx.TransportError, TimeoutError) as error:
            raise NoReplyError(f"process {self.number} did not answer ({type(error).__name__})") from None

    async def _read(self, request: httpx.Request) -> Reply:
        response = await self._client.send(request, stream=True)
        try:
            content = bytearray()
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > MAX_REPLY_BYTES:
                    raise NoReplyError(f"process {self.number} answered more than {MAX_REPLY_BYTES} bytes")
            self.state_version = response.headers.get(STATE_VERSION)
            return Reply(response.status_code, bytes(content), response.headers)
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()


async def ask_all(clients: Iterable[ChildClient], request: ChildRequest, limit_s: float = READ_S) -> dict[int, Reply]:
    """Return the replies by process. Processes that did not answer are left out."""
    return await ask_each([(client, request) for client in clients], limit_s)


async def ask_each(requests: Sequence[tuple[ChildClient, ChildRequest]], limit_s: float = READ_S) -> dict[int, Reply]:
    """Send each process its own request. Return the replies by process, without processes that did not answer."""
    tasks = [asyncio.create_task(client.ask(request, limit_s)) for client, request in requests]
    try:
        await _replies(tasks, leave_stragglers=limit_s == READ_S)
        found: dict[int, Reply] = {}
        for (client, _), task in zip(requests, tasks, strict=True):
            problem = task.exception() if task.done() else None
            if problem is not None and not isinstance(problem, NoReplyError):
                raise problem
            if task.done() and problem is None:
                found[client.number] = task.result()
        return found
    finally:
        for task in tasks:
            task.cancel()


async def _replies(tasks: Sequence[asyncio.Task[Reply]], *, leave_stragglers: bool) -> None:
    """Wait until all tasks have ended; with `leave_stragglers`, for `STRAGGLER_S` after the first reply at most."""
    loop = asyncio.get_running_loop()
    began_s, limit_s, waiting = loop.time(), None, set(tasks)
    while waiting:
        when = asyncio.FIRST_COMPLETED if leave_stragglers and limit_s is None else asyncio.ALL_COMPLETED
        done, waiting = await asyncio.wait(waiting, timeout=limit_s, return_when=when)
        if limit_s is not None:
            return
        if any(task.exception() is None for task in done):
            limit_s = max(STRAGGLER_S, 2 * (loop.time() - began_s))

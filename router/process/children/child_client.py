"""Call a child process over its private Unix socket, which serves the child's admin API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec

from backends.foreign_json import read_json

READ_S = 5.0
"""Time limit of a read. A process that takes longer is left out."""
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


@dataclass(frozen=True, slots=True)
class ChildReply:
    """The reply of a process. Names in `headers` are in lower case."""

    status_code: int
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    @property
    def detail(self) -> str:
        """The detail of a problem document, or the status."""
        try:
            return read_json(self.content, _Problem).detail
        except (msgspec.DecodeError, UnicodeDecodeError):
            return f"status {self.status_code}"


class _Problem(msgspec.Struct):
    detail: str


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

    async def ask(self, request: ChildRequest, limit_s: float = READ_S) -> ChildReply:
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

    async def _read(self, request: httpx.Request) -> ChildReply:
        response = await self._client.send(request, stream=True)
        try:
            content = bytearray()
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > MAX_REPLY_BYTES:
                    raise NoReplyError(f"process {self.number} answered more than {MAX_REPLY_BYTES} bytes")
            self.state_version = response.headers.get(STATE_VERSION)
            return ChildReply(response.status_code, bytes(content), response.headers)
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()


async def ask_all(
    clients: Iterable[ChildClient], request: ChildRequest, limit_s: float = READ_S
) -> dict[int, ChildReply]:
    """Return the replies by process. Processes that did not answer are left out."""
    return await ask_each([(client, request) for client in clients], limit_s)


async def ask_each(
    requests: Sequence[tuple[ChildClient, ChildRequest]], limit_s: float = READ_S
) -> dict[int, ChildReply]:
    """Send each process its own request. Return the replies by process, without processes that did not answer."""
    asked = [client.ask(request, limit_s) for client, request in requests]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    found: dict[int, ChildReply] = {}
    for (client, _), answer in zip(requests, answers, strict=True):
        if isinstance(answer, ChildReply):
            found[client.number] = answer
        elif not isinstance(answer, NoReplyError):
            raise answer
    return found

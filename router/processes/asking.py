"""Asking a process over its private socket, as its own admin API answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import httpx

READ_S = 5.0
"""How long a process may take to answer a question before it is left out."""
CHANGE_S = 10.0
"""How long a change may take. Whoever takes longer hangs."""


class Unanswered(Exception):
    """A process did not answer: it hangs, or has just died."""


class Asking(NamedTuple):
    """One request to a process. `body` is JSON."""

    method: str
    path: str
    query: Mapping[str, int] = {}
    body: bytes | None = None


class Member:
    """A process that serves. Connections to it are kept; one that dies refuses further ones at once."""

    def __init__(self, number: int, path: Path) -> None:
        self.number = number
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://process", trust_env=False
        )

    async def ask(self, asking: Asking, limit_s: float = READ_S) -> httpx.Response:
        """Its answer, whatever the status.

        Raises:
            Unanswered: there was none within `limit_s`.
        """
        headers = {"content-type": "application/json"} if asking.body is not None else {}
        try:
            async with asyncio.timeout(limit_s):
                return await self._client.request(
                    asking.method,
                    asking.path,
                    params=dict(asking.query),
                    content=asking.body,
                    headers=headers,
                    timeout=None,
                )
        except (httpx.TransportError, TimeoutError) as error:
            raise Unanswered(f"process {self.number} did not answer ({type(error).__name__})") from None

    async def aclose(self) -> None:
        """Close connections."""
        await self._client.aclose()


async def ask_all(members: Iterable[Member], asking: Asking) -> dict[int, httpx.Response]:
    """The answers of all that give one, by process."""
    members = list(members)
    answers = await asyncio.gather(*(member.ask(asking) for member in members), return_exceptions=True)
    found: dict[int, httpx.Response] = {}
    for member, answer in zip(members, answers, strict=True):
        if isinstance(answer, httpx.Response):
            found[member.number] = answer
        elif not isinstance(answer, Unanswered):
            raise answer
    return found

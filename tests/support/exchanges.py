"""Responses of the load generator's client, read piece by piece."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from loadtest.load.http import Client


@dataclass(slots=True)
class Response:
    """A response whose body has not been read yet. `parts` ends with None, or with an exception if it is broken."""

    begun: asyncio.Future[None]
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: asyncio.Queue[tuple[float, bytes] | BaseException | None] = field(default_factory=asyncio.Queue)

    def on_head(self, status: int, headers: dict[str, str], transport: asyncio.Transport) -> None:
        self.status, self.headers = status, headers
        self.begun.set_result(None)

    def on_part(self, now_s: float, data: bytes) -> None:
        self.parts.put_nowait((now_s, data))

    def on_end(self, error: BaseException | None) -> None:
        if error is not None and not self.begun.done():
            self.begun.set_exception(error)
        self.parts.put_nowait(error)

    async def stream(self) -> AsyncIterator[tuple[float, bytes]]:
        """Yield (arrival time, bytes) for each piece of the body, as the parser delivers it."""
        while (part := await self.parts.get()) is not None:
            if isinstance(part, BaseException):  # a Ctrl-C, too: uvloop reports it as a lost connection
                raise part
            yield part

    async def read(self) -> bytes:
        return b"".join([data async for _, data in self.stream()])


@asynccontextmanager
async def exchanged(client: Client, request: bytes) -> AsyncIterator[Response]:
    """Send `request`. The connection is kept if the body was read to its end, and closed otherwise."""
    async with client.lent() as connection:
        response = Response(asyncio.get_running_loop().create_future())
        connection.send(request, response)
        await response.begun
        yield response

"""A worker behind a real socket that answers by a script, and the base class of workers that read raw bytes."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from tests.support.waiting import delivered


class SocketWorker:
    """Listens on a loopback port and serves each connection in a task of its own. `id` is ``host:port``."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        self._tls = tls

    async def start(self, port: int = 0) -> Self:
        self.server = await asyncio.start_server(self._accepted, "127.0.0.1", port, ssl=self._tls)
        self.port: int = self.server.sockets[0].getsockname()[1]
        return self

    @property
    def id(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self.serve(reader, writer)
        with suppress(Exception):
            writer.close()

    async def stop(self) -> None:
        """Stop listening and end every connection."""
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@dataclass
class Seen:
    """One request as the worker received it. `connection` counts the worker's connections from 1."""

    head: bytes
    body: bytes
    connection: int
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def lines(self) -> list[bytes]:
        return self.head[:-4].split(b"\r\n")

    @property
    def method(self) -> bytes:
        return self.head.split(b" ", 1)[0]

    @property
    def path(self) -> bytes:
        return self.head.split(b" ", 2)[1]

    def header(self, name: bytes) -> bytes | None:
        values = [line.partition(b":")[2].strip() for line in self.lines[1:] if line.lower().startswith(name + b":")]
        return values[0] if values else None


class Script:
    """What a script works with: the request in `seen`, and the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Seen) -> None:
        self.reader, self.writer, self.seen = reader, writer, seen

    async def say(self, *parts: bytes) -> None:
        """Write `parts`, and wait until the socket has taken most of them."""
        for part in parts:
            self.writer.write(part)
        await self.writer.drain()

    async def say_apart(self, *parts: bytes) -> None:
        """Write `parts`. A gateway on the same event loop reads each of them before the next one is written."""
        for part in parts:
            await self.say(part)
            await delivered()

    async def drip(self, parts: Iterable[bytes], gap_s: float) -> None:
        """Write one part every `gap_s`, until the gateway closes the connection, then set `seen.gone`."""
        with suppress(ConnectionError):
            for part in parts:
                if self.writer.is_closing():
                    break
                await self.say(part)
                await asyncio.sleep(gap_s)
        if self.writer.is_closing():
            self.seen.gone.set()

    async def die(self) -> None:
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the gateway closes the connection, then set `seen.gone`."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.seen.gone.set()


class ScriptedWorker(SocketWorker):
    """Records each request and runs `script` for it; connections are kept alive as HTTP/1.1 says.

    GET requests whose path is in `pages` are answered with that body, and are not recorded.
    """

    def __init__(
        self,
        script: Callable[[Script], Awaitable[None]],
        *,
        pages: Mapping[bytes, bytes] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(tls)
        self.script = script
        self.pages = dict(pages or {})
        self.requests: list[Seen] = []
        self.connections = 0
        self.arrived = asyncio.Event()

    def requests_to(self, path: bytes) -> list[Seen]:
        return [seen for seen in self.requests if seen.path == path]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        while not writer.is_closing():
            seen = Seen(await reader.readuntil(b"\r\n\r\n"), b"", number)
            length = seen.header(b"content-length")
            if length:
                seen.body = await reader.readexactly(int(length))
            if seen.method == b"GET" and seen.path in self.pages:
                page = self.pages[seen.path]
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(page), page))
                continue
            self.requests.append(seen)
            self.arrived.set()
            await self.script(Script(reader, writer, seen))

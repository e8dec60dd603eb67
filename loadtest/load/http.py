"""A small HTTP/1.1 client for load: pooled keep-alive connections, and bodies passed on in pieces as they are read.

General client libraries use more CPU per streamed token than the proxies under test. On a shared machine the test would
then measure the client.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools


@dataclass(slots=True)
class Response:
    """A response whose body has not been read yet.

    `parts` ends with None, or with an exception if the response is broken.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: asyncio.Queue[tuple[float, bytes] | BaseException | None] = field(default_factory=asyncio.Queue)
    transport: asyncio.Transport | None = None

    async def dawdle(self, wait_s: float) -> None:
        """Read nothing from the network for `wait_s`, as a slow reader does."""
        if self.transport is None or self.transport.is_closing():
            return
        self.transport.pause_reading()
        await asyncio.sleep(wait_s)
        if not self.transport.is_closing():
            self.transport.resume_reading()

    async def stream(self) -> AsyncIterator[tuple[float, bytes]]:
        """Yield (arrival time on the loop's clock, bytes) for each piece of the body, as the parser delivers it."""
        while (part := await self.parts.get()) is not None:
            if isinstance(part, BaseException):  # a Ctrl-C, too: uvloop reports it as a lost connection
                raise part
            yield part

    async def read(self) -> bytes:
        return b"".join([data async for _, data in self.stream()])


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._response = Response()
        self._head: asyncio.Future[Response] | None = None
        self.reusable = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def send(self, data: bytes) -> Response:
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._response = Response(transport=self._transport)
        self._head = self._loop.create_future()
        self.reusable = False
        self._transport.write(data)
        return await self._head

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)
            self.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        if not self.reusable:
            self._fail(exc or ConnectionResetError("connection closed before the response's end"))
        self.reusable = False

    def _fail(self, error: BaseException) -> None:
        if self._head is not None and not self._head.done():
            self._head.set_exception(error)
        self._response.parts.put_nowait(error)

    # Callbacks of httptools.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._response.status = self._parser.get_status_code()
        if self._head is not None and not self._head.done():
            self._head.set_result(self._response)

    def on_body(self, body: bytes) -> None:
        self._response.parts.put_nowait((self._loop.time(), body))

    def on_message_complete(self) -> None:
        self.reusable = self._parser.should_keep_alive() and self._transport is not None
        self._response.parts.put_nowait(None)


class Client:
    """Connections to one base URL. With a small `receive_buffer_bytes` the server notices a slow reader sooner."""

    def __init__(self, base_url: str, receive_buffer_bytes: int | None = None) -> None:
        parts = urlsplit(base_url)
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port or 80
        self._receive_buffer_bytes = receive_buffer_bytes
        self._idle: list[Connection] = []

    def request_bytes(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"host: {self._host}:{self._port}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body or method == "POST":
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    @asynccontextmanager
    async def exchange(self, request: bytes) -> AsyncIterator[Response]:
        """Send `request`. The connection is kept if the body was read to its end, and closed otherwise."""
        connection = await self._connection()
        try:
            yield await connection.send(request)
        finally:
            if connection.reusable:
                self._idle.append(connection)
            else:
                connection.close()

    async def _connection(self) -> Connection:
        idle = self._idle
        while idle:
            if (connection := idle.pop()).reusable:
                return connection
        loop = asyncio.get_running_loop()
        if self._receive_buffer_bytes is None:
            _, connection = await loop.create_connection(Connection, self._host, self._port)
            return connection
        made = socket.socket()
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)  # before connecting only
        try:
            await loop.sock_connect(made, (self._host, self._port))
            _, connection = await loop.create_connection(Connection, sock=made)
        except BaseException:
            made.close()
            raise
        return connection

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

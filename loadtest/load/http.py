"""A small HTTP/1.1 client for load: pooled keep-alive connections, which push what they read into a sink.

General client libraries use more CPU per streamed token than the proxies under test. On a shared machine the test would
then measure the client. A sink gets each piece of a body inside the read that brought it, without a queue or a task.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

MOST_IDLE_S = 4.0
"""An older connection is not used again: uvicorn, and so vLLM, closes a connection that was idle for 5 s."""


class Sink(Protocol):
    """Takes one response: its head, the pieces of its body with their times, and its end or the error."""

    def on_head(self, status: int, headers: dict[str, str], transport: asyncio.Transport) -> None: ...

    def on_part(self, now_s: float, data: bytes) -> None: ...

    def on_end(self, error: BaseException | None) -> None: ...


class Connection(asyncio.Protocol):
    """Carries one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._sink: Sink | None = None
        self._headers: dict[str, str] = {}
        self._now_s = 0.0
        self.reusable = False
        self.idle_since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, data: bytes, sink: Sink) -> None:
        """Send a whole request. The previous one must have ended."""
        self._parser = httptools.HttpResponseParser(self)
        self._sink, self._headers = sink, {}
        self.reusable = False
        if self._transport is None:
            self._end(ConnectionResetError("connection closed before the request"))
        else:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._now_s = time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(error)
            self.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        self.reusable = False
        self._end(exc or ConnectionResetError("connection closed before the response's end"))

    def _end(self, error: BaseException | None) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.on_end(error)

    # Callbacks of httptools.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._sink is not None and self._transport is not None:
            self._sink.on_head(self._parser.get_status_code(), self._headers, self._transport)

    def on_body(self, body: bytes) -> None:
        if self._sink is not None:
            self._sink.on_part(self._now_s, body)

    def on_message_complete(self) -> None:
        self.reusable = self._parser.should_keep_alive() and self._transport is not None
        self.idle_since_s = self._now_s
        self._end(None)


class Client:
    """Connections to one base URL. With a small `receive_buffer_bytes` the server notices a slow reader sooner.

    Raises:
        ValueError: the URL is none of http or https.
    """

    def __init__(
        self, base_url: str, receive_buffer_bytes: int | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(f"{base_url!r} is no URL of http or https")
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, parts.port or (443 if self._ssl else 80)
        self._root = parts.path.rstrip("/")
        self._authority = parts.netloc.rpartition("@")[2]
        self._headers = dict(headers or {})
        self._receive_buffer_bytes = receive_buffer_bytes
        self._idle: list[Connection] = []

    def request_bytes(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        lines = [f"{method} {self._root}{path} HTTP/1.1", f"host: {self._authority}"]
        lines += [f"{name}: {value}" for name, value in {**self._headers, **(headers or {})}.items()]
        if body or method == "POST":
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[Connection]:
        """Lend a connection for one request; it is kept if it can carry another one then, and closed otherwise."""
        connection = await self._connection()
        try:
            yield connection
        finally:
            if connection.reusable:
                self._idle.append(connection)
            else:
                connection.close()

    async def _connection(self) -> Connection:
        idle, loop = self._idle, asyncio.get_running_loop()
        oldest_s = time.monotonic() - MOST_IDLE_S
        while idle:
            connection = idle.pop()
            if connection.reusable and connection.idle_since_s > oldest_s:
                return connection
            connection.close()
        if self._receive_buffer_bytes is None:
            _, connection = await loop.create_connection(Connection, self._host, self._port, ssl=self._ssl)
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

"""The server of the admin port: uvicorn on the gateway's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterable, Iterator

import msgspec
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.admin.http.connection import MOST_UNSENT_BYTES, AdminConnection, AdminPort
from router.config.descriptors import ADMIN_CONNECTIONS
from router.config.model import Config
from router.gateway.http.send_buffer_limit import SendBufferLimit
from router.gateway.listen.accept import Acceptor, Listener
from router.gateway.listen.connection_limit import ConnectionLimit
from router.gateway.listen.drain import close_listeners

GRACE_S = 2.0
"""Time for a call in progress to end, after the public port has drained."""

LAST_CALL_S = 0.1
"""Time to read requests that had arrived, on open or waiting connections, when the listener closed."""


class AdminServer:
    """Serve `app` on a listening socket."""

    def __init__(
        self, app: ASGIApp, listener: socket.socket, config: Config, tls: ssl.SSLContext | None = None
    ) -> None:
        self.listener = listener
        self._app = app
        settings = uvicorn.Config(
            self._last_answers,
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
        )
        self._server = _AdminUvicorn(settings, config, tls)
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """``host:port`` as bound, or the path of a Unix socket."""
        name = self.listener.getsockname()
        if not isinstance(name, tuple):
            return str(name)
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"

    async def start(self) -> None:
        """Serve on the running loop. The port answers when this returns."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self.listener]), name="admin")
        await self._server.serves.wait()

    async def stop_accepting(self, *, leave_queue: bool) -> None:
        """Close the listener. Connections continue, and every later response asks its client to close."""
        server = self._server
        if not server.accepts:
            return
        server.accepts = False
        await close_listeners(
            server.listening, [self.listener], server.acceptor.take, leave_queue=leave_queue, settle_s=0.0
        )

    def accept_again(self, listener: socket.socket) -> None:
        """Accept on a duplicate of the listener that `stop_accepting` closed."""
        self.listener = listener
        self._server.accepts = True
        self._server.listen([listener])

    def statistics(self) -> dict[str, int]:
        """Return connections, events at their limit, and unread responses."""
        port = self._server.port
        unsent = {"unsent_bytes": port.unsent.used_bytes, "slow_readers_cut": port.unsent.cut}
        return {**port.places.statistics(), **unsent}

    async def aclose(self, *, leave_queue: bool = False) -> None:
        """Stop accepting, if that has not happened. Calls in progress have `GRACE_S` to end."""
        if self._task is not None:
            if self._server.accepts:
                await self.stop_accepting(leave_queue=leave_queue)
                await asyncio.sleep(LAST_CALL_S if self._server.server_state.connections else 0)
            self._server.port.places.cancel_opening()
            self._server.should_exit = True
            await asyncio.gather(self._task, return_exceptions=True)
        self.listener.close()

    async def _last_answers(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and not self._server.accepts:
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, closing)


class _AdminUvicorn(uvicorn.Server):
    """uvicorn on connections that the gateway's `Acceptor` accepts: uvicorn itself limits requests, not sockets."""

    def __init__(self, settings: uvicorn.Config, config: Config, tls: ssl.SSLContext | None) -> None:
        settings.timeout_graceful_shutdown = GRACE_S  # type: ignore[assignment]
        super().__init__(settings)
        loop = asyncio.get_running_loop()
        self.serves = asyncio.Event()
        self.accepts = True
        self.port = _port_of(config, ConnectionLimit(ADMIN_CONNECTIONS, loop.time))
        self.acceptor = Acceptor(loop, self._connection, self.port.places, tls)
        self.listening: list[Listener] = []
        self.servers = []

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.listen(sockets or ())
        self.started = True
        self.serves.set()

    def listen(self, sockets: Iterable[socket.socket]) -> None:
        loop = asyncio.get_running_loop()
        self.listening = [Listener(loop, self.acceptor, each) for each in sockets]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in self.listening:
            listener.close()
        await super().shutdown(sockets)

    def _connection(self) -> AdminConnection:
        return AdminConnection(self.config, self.server_state, self.lifespan.state, self.port)


def _port_of(config: Config, places: ConnectionLimit) -> AdminPort:
    limits, timeouts = config.limits, config.timeouts
    return AdminPort(
        places=places,
        unsent=SendBufferLimit(msgspec.structs.replace(limits, max_buffered_response_bytes=MOST_UNSENT_BYTES)),
        max_header_bytes=limits.max_header_bytes,
        header_s=timeouts.client_header_s,
        body_s=timeouts.client_body_s,
        unread_s=timeouts.stream_idle_s,
    )

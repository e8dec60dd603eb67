"""The admin port: uvicorn on the gateway's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette
from starlette.types import Message, Receive, Scope, Send

from router.gateway.closing import close_listeners

GRACE_S = 2.0
"""How long a call in progress may take to end, once the public side has drained."""

LAST_CALL_S = 0.1
"""Time to read what has arrived on connections that were open, or waited to be accepted, when the listener closed."""


class AdminServer:
    """Serves `app` on a listening socket."""

    def __init__(self, app: Starlette, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self.listener = listener
        self._tls = None if listener.family == socket.AF_UNIX else tls
        self._app = app
        settings = uvicorn.Config(
            self._last_answers,
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
        )
        settings.load()
        settings.ssl = self._tls
        self._server = _Server(settings)
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """``host:port`` as bound, or a Unix socket's path."""
        name = self.listener.getsockname()
        if not isinstance(name, tuple):
            return str(name)
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"

    async def start(self) -> None:
        """Serve on the running loop; the port answers when this returns."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self.listener]), name="admin")
        await self._server.serves.wait()

    async def stop_accepting(self, *, leave_queue: bool) -> None:
        """Close the listener. Connections go on, and every answer from now on tells its client to close."""
        server = self._server
        if not server.accepts:
            return
        server.accepts = False
        await close_listeners(
            server.servers, [self.listener], server.connection, self._tls, leave_queue=leave_queue, settle_s=0.0
        )

    async def aclose(self, *, leave_queue: bool = False) -> None:
        """Stop accepting where that has not been done; calls in progress have `GRACE_S` to end."""
        if self._task is not None:
            if self._server.accepts:
                await self.stop_accepting(leave_queue=leave_queue)
                await asyncio.sleep(LAST_CALL_S if self._server.server_state.connections else 0)
            self._server.should_exit = True
            await asyncio.gather(self._task, return_exceptions=True)
        self.listener.close()

    async def _last_answers(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and not self._server.accepts:
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, closing)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        config.timeout_graceful_shutdown = GRACE_S  # type: ignore[assignment]
        super().__init__(config)
        self.serves = asyncio.Event()
        self.accepts = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's own affair."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's, and say so."""
        await super().startup(sockets=sockets)
        self.serves.set()

    def connection(self) -> asyncio.Protocol:
        """A protocol for a connection that was accepted past uvicorn."""
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

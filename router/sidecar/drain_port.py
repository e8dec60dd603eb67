"""``POST /drain`` on loopback, for the worker's preStop hook."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from router.admin.audit_log import AuditLog
from router.admin.guard import AdminGuard
from router.admin.http.server import AdminServer
from router.config.model import Config
from router.process.listeners import admin_socket

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Drained:
    """The end of a drain: the requests that still run, because the time was over."""

    requests: int


class DrainPort:
    """Serve ``POST /drain``. `drain` returns when the drain has ended; a second call waits for the same drain."""

    def __init__(self, config: Config, drain: Callable[[], Awaitable[Drained]]) -> None:
        self._config = replace(config, admin_host=HOST, admin_port=config.sidecar.drain_port)
        self._drain = drain
        self._server: AdminServer | None = None

    async def start(self) -> str:
        """Listen; return ``host:port``.

        Raises:
            ListenError: the port is in use.
        """
        guard = Middleware(AdminGuard, names=(HOST,), audit=AuditLog())
        app = Starlette(routes=[Route("/drain", self._answer, methods=["POST"])], middleware=[guard])
        self._server = AdminServer(app, admin_socket(self._config), self._config)
        await self._server.start()
        return self._server.address

    async def aclose(self) -> None:
        """Stop listening. A call in progress has a moment to end."""
        if self._server is not None:
            await self._server.aclose()

    async def _answer(self, request: Request) -> JSONResponse:
        drained = await self._drain()
        if drained.requests:
            return JSONResponse({"status": "requests still run", "requests": drained.requests}, 504)
        return JSONResponse({"status": "drained", "requests": 0})

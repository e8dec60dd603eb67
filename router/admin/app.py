"""The admin application of a running gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache, partial

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from router.admin.console_files import console_files, console_routes
from router.admin.guard import AdminGuard
from router.admin.http.problems import (
    AdminError,
    answer_admin_error,
    answer_bug,
    answer_http_error,
    answer_request_error,
)
from router.admin.openapi import OPENAPI_PATH, openapi_document
from router.admin.operations import Operation, Port, check, check_accept, endpoint
from router.admin.system import AdminView
from router.admin.table import OPEN_PATHS, OPERATIONS
from router.errors import RequestError
from router.security.token import AdminTokens


def build_admin(
    system: AdminView,
    tokens: AdminTokens | None = None,
    *,
    operations: Iterable[Operation] = OPERATIONS,
    guarded: bool = True,
    further: Sequence[Route] = (),
) -> Starlette:
    """Return the ASGI application. It must run on the gateway's event loop, because it calls the core directly.

    One of several processes serves it without guard and audit on a private socket, with `further` routes. Their
    supervisor serves its own `operations`.
    """
    console = console_files() if guarded else {}
    open_paths = (*OPEN_PATHS, *console, *(("/metrics",) if system.config.admin_metrics_open else ()))
    names = (system.config.admin_host, *system.config.admin_hosts)
    port = Port(system, {one.name: one for one in operations})
    guard = Middleware(AdminGuard, names=names, audit=port.audit, tokens=tokens, open_paths=open_paths)
    return Starlette(
        routes=[
            *_routes(port, recorded=guarded),
            *console_routes(console, open_to_all=tokens is not None),
            *further,
        ],
        middleware=[guard] if guarded else [],
        exception_handlers={
            AdminError: answer_admin_error,
            RequestError: answer_request_error,
            HTTPException: answer_http_error,
            Exception: answer_bug,
        },
    )


def _routes(port: Port, *, recorded: bool) -> list[Route]:
    """Return one route per path, so that a wrong method is answered with the list of allowed ones."""
    paths: dict[str, dict[str, Callable[[Request], Awaitable[Response]]]] = {}
    for operation in port.operations.values():
        paths.setdefault(operation.path, {})[operation.method] = endpoint(operation, port, recorded=recorded)
    paths[OPENAPI_PATH] = {"GET": _openapi}
    return [Route(path, partial(_by_method, methods), methods=list(methods)) for path, methods in paths.items()]


async def _by_method(methods: dict[str, Callable[[Request], Awaitable[Response]]], request: Request) -> Response:
    try:
        return await methods["GET" if request.method == "HEAD" else request.method](request)
    except (AdminError, RequestError):
        raise
    except ClientDisconnect:
        return Response(status_code=400)
    except Exception as error:  # not left to Starlette, which would raise it again for the server to log
        return await answer_bug(request, error)


async def _openapi(request: Request) -> Response:
    check(request)
    check_accept(request, "application/json")
    return Response(_description(), media_type="application/json")


@cache
def _description() -> bytes:
    return msgspec.json.encode(openapi_document())

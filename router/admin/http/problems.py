"""Errors of the admin API, as RFC 9457 problem documents."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from router.errors import ErrorKind, RequestError, problem

log = logging.getLogger("warmroute.admin")

MEDIA_TYPE = "application/problem+json"


class AdminError(Exception):
    """An error of the admin API. `code` is stable; `detail` says what to do."""

    def __init__(self, status: HTTPStatus, code: str, detail: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})


def problem_response(error: AdminError) -> Response:
    document = problem(error.status, error.code, error.status.phrase, error.detail)
    return Response(msgspec.json.encode(document), error.status, error.headers, MEDIA_TYPE)


def not_found(what: str, hint: str) -> AdminError:
    return AdminError(HTTPStatus.NOT_FOUND, "not_found", f"there is no {what}; {hint}")


def invalid(detail: str) -> AdminError:
    """Return 422: the request can be read, but is not valid."""
    return AdminError(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_value", detail)


async def answer_admin_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, AdminError)
    return problem_response(error)


async def answer_request_error(_: Request, error: Exception) -> Response:
    """Answer with the error that the public port would give to the explained request."""
    assert isinstance(error, RequestError)
    spec = error.kind.spec
    document = problem(spec.status, spec.code, spec.title, error.message)
    return Response(msgspec.json.encode(document), spec.status, media_type=MEDIA_TYPE)


async def answer_http_error(request: Request, error: Exception) -> Response:
    """Answer an unknown path, or a method that the path does not have."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    kinds = {404: ErrorKind.PATH_NOT_FOUND, 405: ErrorKind.METHOD_NOT_ALLOWED}
    code = kinds[status].spec.code if status in kinds else "http_error"
    allowed = (error.headers or {}).get("Allow")
    hint = f"allowed: {allowed}" if allowed else "see /admin/v1/openapi.json"
    detail = f"{request.method} {request.url.path}: {status.phrase.lower()}; {hint}"
    return problem_response(AdminError(status, code, detail, headers=error.headers))


async def answer_bug(request: Request, error: Exception) -> Response:
    """Answer 500. The log has the traceback, and the answer refers to the log."""
    log.error("admin request failed", extra={"method": request.method, "path": request.url.path}, exc_info=error)
    detail = f"{type(error).__name__} in {request.method} {request.url.path}; the gateway's log has the traceback"
    return problem_response(AdminError(HTTPStatus.INTERNAL_SERVER_ERROR, ErrorKind.INTERNAL.spec.code, detail))


def handed_over() -> AdminError:
    """Return 503: another process serves, and a change made here would be lost."""
    detail = "another process has taken over; ask again on a new connection"
    headers = {"retry-after": "1", "connection": "close"}
    return AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "handed_over", detail, headers=headers)


def no_process() -> AdminError:
    detail = "no process of the gateway serves now; one is starting, or the log gives the reason why it cannot"
    return AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "no_process", detail, headers={"retry-after": "1"})

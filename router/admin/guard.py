"""Keep browser pages and callers without a token from using the admin port.

A page on any site can send requests to a loopback address. Three checks stop it. The Host must be a name of this port,
which a rebound DNS name is not. An Origin must equal the Host. A body must be declared as JSON, which a page cannot do
without a preflight, and this port answers no preflights.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from router.admin.audit_log import AuditLog
from router.admin.http.problems import AdminError, problem_response
from router.errors import ErrorKind
from router.security.token import AdminCaller, AdminTokens

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})


class AdminGuard:
    """ASGI middleware.

    `names` are host names that the port answers to, in addition to loopback names and addresses. `open_paths` need no
    token. The request's state gets the `AdminCaller` whose token it brings. A refused change is recorded in `audit`.
    """

    def __init__(
        self,
        app: ASGIApp,
        names: Iterable[str],
        audit: AuditLog,
        tokens: AdminTokens | None = None,
        open_paths: Iterable[str] = (),
    ) -> None:
        self._app = app
        self._audit = audit
        self._tokens = tokens
        self._open_paths = frozenset(open_paths)
        self._names = _LOOPBACK_NAMES | {_normal(name) for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            headers = Headers(scope=scope)
            scope.setdefault("state", {})["caller"] = self._caller(scope["path"], headers)
            self._check(scope["method"], headers)
        except AdminError as error:
            if scope["method"] not in _SAFE:
                self._audit.refused(Request(scope), error)
            await problem_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _caller(self, path: str, headers: Headers) -> AdminCaller | None:
        if self._tokens is None or path in self._open_paths:
            return None
        given = headers.getlist("authorization")
        caller = self._tokens.caller_of(given[0]) if len(given) == 1 else None
        if caller is None:
            detail = "this port needs a token as Authorization: Bearer TOKEN (admin_token, admin_tokens)"
            challenge = {"www-authenticate": "Bearer"}
            raise AdminError(HTTPStatus.UNAUTHORIZED, "unauthorized", detail, headers=challenge)
        return caller

    def _check(self, method: str, headers: Headers) -> None:
        host = ", ".join(headers.getlist("host"))  # several are no name
        if not self._ours(host):
            detail = f"Host {host!r} is not one of this port's names; add it to admin_hosts if it should be"
            raise AdminError(HTTPStatus.FORBIDDEN, "host_not_allowed", detail)
        origins = headers.getlist("origin")
        origin = ", ".join(origins)
        if origins and _site(origin) != host.lower():
            detail = f"Origin {origin!r} is another site; this port serves its own pages and programs only"
            raise AdminError(HTTPStatus.FORBIDDEN, "origin_not_allowed", detail)
        if method not in _SAFE and not _json_or_nothing(headers):
            detail = "a body must come as Content-Type: application/json"
            raise AdminError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail)
        coding = headers.get("content-encoding", "identity")
        if coding.lower() != "identity":
            detail = f"this port decodes no Content-Encoding, and {coding!r} is one; send the body without it"
            raise AdminError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                ErrorKind.UNSUPPORTED_CONTENT_ENCODING.spec.code,
                detail,
                headers={"accept-encoding": "identity"},
            )

    def _ours(self, host: str) -> bool:
        name, port = _parted(host)
        if port not in ("", ":") and not (port.startswith(":") and port[1:].isascii() and port[1:].isdigit()):
            return False
        name = _normal(name)
        return name in self._names or _address(name)


def _json_or_nothing(headers: Headers) -> bool:
    """Accept JSON or no body. An HTML form always sends a content type, and a page's text body is text/plain."""
    kind = headers.get("content-type")
    if kind is not None:
        return kind.partition(";")[0].strip().lower() in ("application/json", "application/merge-patch+json")
    return headers.get("content-length", "0").strip() == "0" and "transfer-encoding" not in headers


def _site(origin: str) -> str:
    """Return host and port of an origin; "" for anything else."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _parted(host: str) -> tuple[str, str]:
    if host.startswith("["):
        name, bracket, port = host.partition("]")
        return name + bracket, port
    name, colon, port = host.partition(":")
    return name, colon + port


def _normal(name: str) -> str:
    return name.strip("[]").rstrip(".").lower()


def _address(name: str) -> bool:
    """Accept IP addresses: they cannot be rebound, so a page with an address as its host comes from this port."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

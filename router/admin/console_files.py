"""The console: the files of one page, which reads and changes the gateway over the admin API alone."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router.admin.http.problems import AdminError
from router.admin.operations import check

PAGE = "/"
_FOLDER = "console"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "txt": "text/plain; charset=utf-8",
}
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def console_files() -> dict[str, tuple[bytes, str]]:
    """Return the content and media type of each file, by its path on the admin port."""
    folder = files("router.admin") / _FOLDER
    places = {f"/{_FOLDER}/{one.name}": one for one in folder.iterdir() if one.is_file()}
    places |= {f"/{_FOLDER}/vendor/{one.name}": one for one in (folder / "vendor").iterdir()}
    found = {
        path: (place.read_bytes(), _TYPES[suffix])
        for path, place in places.items()
        if (suffix := path.rpartition(".")[2]) in _TYPES
    }
    found[PAGE] = found.pop(f"/{_FOLDER}/index.html")
    return found


def console_routes(contents: dict[str, tuple[bytes, str]], *, open_to_all: bool) -> list[Route]:
    """Return a route for each file. Unless `open_to_all`, only clients of this host get them."""
    return [Route(path, _answer(body, kind, open_to_all), methods=["GET"]) for path, (body, kind) in contents.items()]


def _answer(body: bytes, kind: str, open_to_all: bool) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        check(request)
        if not open_to_all and not _of_this_host(request):
            detail = "without admin tokens the console is for this host alone; set admin_tokens, or use loopback"
            raise AdminError(HTTPStatus.FORBIDDEN, "console_not_open", detail)
        return Response(body, headers=_HEADERS, media_type=kind)

    return answer


def _of_this_host(request: Request) -> bool:
    """Return whether the client has a loopback address, or none, as on a Unix socket."""
    if request.client is None or not request.client.host:
        return True
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback

"""Send one request to the admin port of a running gateway."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from router.config.problems import ConfigError, Problem

TIMEOUT_S = 60.0


class AdminClientError(Exception):
    """The admin port cannot be reached, or answered with a problem. The message says what to do.

    `code` is that of the problem document; None without one.
    """

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class AdminReply:
    """A good answer: its JSON body, empty where there is none, its entity tag, and how long its change is kept."""

    body: bytes
    tag: str | None = None
    kept: str | None = None

    @property
    def document(self) -> Any:
        """The JSON document; None if there is none."""
        return json.loads(self.body) if self.body else None


def ask(
    url: str,
    method: str,
    path: str,
    document: Mapping[str, Any] | None = None,
    *,
    token: str | None = None,
    ca_file: str | None = None,
    if_match: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> AdminReply:
    """Return the answer of the admin port at `url`.

    Raises:
        AdminClientError: there is no answer, or it is a problem document.
        ConfigError: `url` or `ca_file` cannot be used.
    """
    with _open(_request(url, method, path, document, token, if_match), url, ca_file, timeout_s) as response:
        headers = response.headers
        return AdminReply(response.read(), headers.get("etag"), headers.get("x-warmroute-kept"))


@contextmanager
def stream(
    url: str, path: str, *, token: str | None = None, ca_file: str | None = None, timeout_s: float = TIMEOUT_S
) -> Iterator[Iterable[bytes]]:
    """Give the lines of a streamed answer. `timeout_s` is the longest silence.

    Raises:
        AdminClientError: there is no answer, it is a problem document, or it breaks off.
        ConfigError: `url` or `ca_file` cannot be used.
    """
    with _open(_request(url, "GET", path, None, token, None), url, ca_file, timeout_s) as response:
        yield response


def _request(
    url: str, method: str, path: str, document: Mapping[str, Any] | None, token: str | None, if_match: str | None
) -> Request:
    body = json.dumps(document).encode() if document is not None else None
    headers = {"content-type": "application/json"} if body is not None else {}
    request = Request(_address(url) + path, body, headers, method=method)
    if if_match is not None:
        request.add_header("if-match", if_match)
    if token is not None:
        request.add_header("authorization", f"Bearer {token}")
    return request


@contextmanager
def _open(request: Request, url: str, ca_file: str | None, timeout_s: float) -> Iterator[Any]:
    # a proxy of the environment is for the internet, and the admin port is not there
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=_context(ca_file)))
    try:
        with opener.open(request, timeout=timeout_s) as response:
            yield response
    except HTTPError as error:
        raise _refusal(url, error) from None
    except (URLError, OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise AdminClientError(
            f"{url}: no answer from the admin port: {reason}; start `warmroute serve`, or write its admin port as --url"
        ) from None


def _address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        fix = "write http://HOST:PORT or https://HOST:PORT"
        raise ConfigError([Problem("--url", f"{url!r} is not the address of an admin port", fix)])
    return f"{parts.scheme}://{parts.netloc}"


def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        said = error.strerror or str(error)
        fix = "write a PEM file with certificates"
        raise ConfigError([Problem("--ca-file", f"cannot use {ca_file!r}: {said}", fix)]) from None


def _refusal(url: str, error: HTTPError) -> AdminClientError:
    try:
        problem = json.loads(error.read())
        title, detail, code = problem["title"], problem["detail"], problem.get("code")
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return AdminClientError(
            f"{url}: {error.code}, and not as an admin port answers; write the gateway's admin port as --url"
        )
    fix = "; write its token with --token-file or --token" if error.code == 401 else ""
    return AdminClientError(f"{url}: {error.code} {title}: {detail}{fix}", code)

"""Calls to the API server of Kubernetes, over httpx."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from backends.foreign_json import read_json

IN_CLUSTER = "https://kubernetes.default.svc"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_AGE_S = 60.0
"""The file of the token is read again after this time. Kubernetes renews the token."""
READ_S = 75.0
"""Longest silence of a connection. A watch of an idle collection may be silent for so long, and then starts again."""
_CONNECT_S = 5.0
MOST_BYTES = 64 << 20
"""Bytes of one answer, or of one line of a watch."""
_MOST_PAUSE_S = 60.0
_SHOWN_CHARACTERS = 200

Json = dict[str, Any]


class ApiServerError(Exception):
    """The API server did not answer as it should. `pause_s` is how long it asks to be left alone."""

    def __init__(self, reason: str, pause_s: float = 0.0) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


class ExpiredError(ApiServerError):
    """The version or the continue token of the call is too old (410): list again."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API server is, and who calls. `token_file` and `ca_file` may be None."""

    url: str = IN_CLUSTER
    token_file: str | None = str(SERVICE_ACCOUNT / "token")
    ca_file: str | None = str(SERVICE_ACCOUNT / "ca.crt")


def access_to(url: str) -> Access:
    """Return the access to a server. Only the cluster's own gets the token of the service account."""
    return Access() if url == IN_CLUSTER else Access(url, None, None)


def own_namespace() -> str:
    """Return the namespace of this process's own pod.

    Raises:
        OSError: it runs in none.
    """
    return (SERVICE_ACCOUNT / "namespace").read_text().strip()


class ApiServer:
    """Call one API server. Close it with `aclose`.

    Raises:
        OSError, ssl.SSLError: the file of the CA cannot be used.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._token: str | None = None
        self._read_at_s = 0.0
        verify = ssl.create_default_context(cafile=access.ca_file) if access.url.startswith("https:") else True
        timeout = httpx.Timeout(READ_S, connect=_CONNECT_S, pool=_CONNECT_S)
        self._client = httpx.AsyncClient(base_url=access.url, verify=verify, timeout=timeout, trust_env=False)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def get(self, path: str, query: Mapping[str, str]) -> Json:
        """Return the JSON document of a GET.

        Raises:
            ExpiredError: the answer was 410.
            ApiServerError: there was no usable answer.
        """
        async with self._opened(path, query) as response:
            body = bytearray()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > MOST_BYTES:
                    raise ApiServerError(f"{path}: an answer of more than {MOST_BYTES} bytes")
        return decode(bytes(body))

    @asynccontextmanager
    async def lines(self, path: str, query: Mapping[str, str]) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        """Open a GET whose answer is lines. They are yielded as they come, those that came together at once.

        Raises:
            ExpiredError: the answer was 410.
            ApiServerError: there was no usable answer, or its lines broke off or were silent for `READ_S`.
        """
        async with self._opened(path, query) as response:
            yield _lines(response)

    @asynccontextmanager
    async def _opened(self, path: str, query: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        try:
            response = await self._send(path, query)
            if response.status_code == httpx.codes.UNAUTHORIZED:
                await response.aclose()
                self._read_at_s = 0.0
                response = await self._send(path, query)
            try:
                if response.status_code != httpx.codes.OK:
                    raise await _error(path, response)
                yield response
            finally:
                await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise ApiServerError(f"{self._access.url}: {str(error) or type(error).__name__}") from None

    async def _send(self, path: str, query: Mapping[str, str]) -> httpx.Response:
        headers = {"accept": "application/json"}
        if (token := await self._current_token()) is not None:
            headers["authorization"] = f"Bearer {token}"
        request = self._client.build_request("GET", path, params=dict(query), headers=headers)
        return await self._client.send(request, stream=True)

    async def _current_token(self) -> str | None:
        if self._access.token_file is None:
            return None
        now_s = time.monotonic()
        if self._token is None or now_s - self._read_at_s >= TOKEN_AGE_S:
            self._token = (await asyncio.to_thread(Path(self._access.token_file).read_text)).strip()
            self._read_at_s = now_s
        return self._token


def decode(text: bytes) -> Json:
    """Return a JSON object.

    Raises:
        ApiServerError: the text is none.
    """
    try:
        value = read_json(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ApiServerError(f"an answer that is no JSON object: {_shown(text)}")
    return value


def status_error(status: Json, place: str) -> ApiServerError:
    code, message = status.get("code"), status.get("message") or status.get("reason") or "no message"
    reason = f"{place}: {code}: {_shown(str(message).encode())}"
    return ExpiredError(reason) if code == httpx.codes.GONE else ApiServerError(reason)


async def _error(path: str, response: httpx.Response) -> ApiServerError:
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > 1 << 16:
            break
    status: Json = {"message": body.decode(errors="replace")}  # a path without a resource answers plain text
    try:
        status = decode(bytes(body))
    except ApiServerError:
        pass
    error = status_error({**status, "code": response.status_code}, path)
    error.pause_s = _retry_after_s(response.headers.get("retry-after", ""))
    return error


def _retry_after_s(text: str) -> float:
    return min(_MOST_PAUSE_S, float(text)) if text.isascii() and text.isdecimal() else 0.0


async def _lines(response: httpx.Response) -> AsyncIterator[list[bytes]]:
    rest = bytearray()
    async for piece in response.aiter_bytes():
        rest += piece
        if b"\n" in piece:
            *whole, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            yield whole
        if len(rest) > MOST_BYTES:
            raise ApiServerError(f"a line of more than {MOST_BYTES} bytes")


def _shown(text: bytes) -> str:
    return " ".join(text[:_SHOWN_CHARACTERS].decode(errors="replace").split())

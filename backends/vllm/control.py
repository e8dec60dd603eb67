"""Control-plane HTTP to one worker: bounded in size and time, and without surprises.

Redirects are not followed, compressed bodies are refused (they could not be bounded before they are unpacked), and
every failure is a `ProbeError`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import httpx

from backends.worker import Endpoint

MAX_ANSWER_BYTES = 1 << 20
KEEP_ALIVE_S = 4.0
"""vLLM closes a connection that was idle for 5 s."""
_HEADERS = {"accept-encoding": "identity", "user-agent": "warmroute-probe"}


def worker_client(api_key: str | None = None, tls: ssl.SSLContext | None = None) -> httpx.AsyncClient:
    """A client for the functions below, which shows a worker `api_key` if it is given; `tls` where it is reached so.

    Proxies named in the environment are for the outside world, not for workers.
    """
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE_S)
    # No context of its own where there is no TLS: that would cost 20 ms of the event loop for nothing.
    verify = tls if tls is not None else False
    return httpx.AsyncClient(headers=headers, trust_env=False, verify=verify, limits=limits, timeout=None)


class ProbeError(Exception):
    """The endpoint is not usable now; `reason` says why in words for an operator."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RefusedError(ProbeError):
    """The endpoint answered with another status than 200."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


async def get(
    client: httpx.AsyncClient, endpoint: Endpoint, path: str, timeout_s: float, max_bytes: int = MAX_ANSWER_BYTES
) -> bytes:
    """The body of the 200 answer to a GET.

    Raises:
        RefusedError: another status.
        ProbeError: anything else.
    """
    return await _fetch(client, _request(client, endpoint, path, "GET", _HEADERS), path, timeout_s, max_bytes)


async def post_json(
    client: httpx.AsyncClient,
    endpoint: Endpoint,
    path: str,
    body: bytes,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
) -> bytes:
    """The body of the 200 answer to a JSON POST.

    Raises:
        RefusedError: another status.
        ProbeError: anything else.
    """
    every = {**_HEADERS, "content-type": "application/json", **(headers or {})}
    request = _request(client, endpoint, path, "POST", every, body)
    return await _fetch(client, request, path, timeout_s, MAX_ANSWER_BYTES)


def _request(
    client: httpx.AsyncClient,
    endpoint: Endpoint,
    path: str,
    method: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
) -> httpx.Request:
    try:
        return client.build_request(method, endpoint.url + path, content=body, headers=dict(headers))
    except (httpx.InvalidURL, ValueError) as error:
        raise ProbeError(f"{endpoint.url!r} is not a usable address: {_why(error)}") from None


async def _fetch(
    client: httpx.AsyncClient, request: httpx.Request, path: str, timeout_s: float, max_bytes: int
) -> bytes:
    """The body of a 200 answer. Any failure, of whatever kind, is a `ProbeError`."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(client, request, path, max_bytes)
    except ProbeError:
        raise
    except (TimeoutError, httpx.TimeoutException):
        raise ProbeError(f"{path} gave no answer within {timeout_s:g} s") from None
    except httpx.ConnectError as error:
        raise ProbeError(f"cannot connect to {request.url.netloc.decode()}: {_why(error)}") from None
    except Exception as error:  # what speaks on that port is not ours to foresee, and must not end the watch
        raise ProbeError(f"{path} broke off: {_why(error)}") from None


async def _read(client: httpx.AsyncClient, request: httpx.Request, path: str, max_bytes: int) -> bytes:
    response = await client.send(request, stream=True, follow_redirects=False)
    try:
        if response.is_redirect:
            target = response.headers.get("location", "nowhere")[:200]
            raise RefusedError(f"{path} redirects to {target}: give the worker's own address", response.status_code)
        if response.status_code != 200:
            raise RefusedError(f"{path} answered {response.status_code}", response.status_code)
        if response.headers.get("content-encoding", "identity") != "identity":
            raise ProbeError(f"{path} answered compressed although asked not to: is this a vLLM server?")
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > max_bytes:
                raise ProbeError(f"{path} answered more than {max_bytes} bytes: is this a vLLM server?")
        return bytes(body)
    finally:
        await response.aclose()


def _why(error: BaseException) -> str:
    return str(error)[:200] or type(error).__name__

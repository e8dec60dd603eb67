"""Control-plane HTTP to workers: every call to a worker that is not a client's request."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import TracebackType
from typing import Self

from backends.connect_errors import is_refusal, says_nothing
from backends.keep_alive import keep_alive
from backends.vllm.connection import MAX_HEAD_BYTES as MAX_HEAD_BYTES
from backends.vllm.connection import BrokenAnswer, Connection, LargeAnswer, WorkerAnswer
from backends.worker import Endpoint

MAX_ANSWER_BYTES = 1 << 20
MAX_METRICS_BYTES = 1 << 20
"""A page of one engine is about 0.1 MB; a deployment with many ranks and adapters has a few MB."""
MAX_CALLS = 8
"""Concurrent calls to one worker. Further ones wait, within their own time limit."""
KEEP_ALIVE_S = 4.0
"""vLLM closes a connection that was idle for 5 s."""
_REDIRECTS = (301, 302, 303, 307, 308)


class ProbeFault(StrEnum):
    LATE = "late"
    """No answer in time, or none could be asked for: evidence of nothing."""
    REFUSED = "refused"
    """The connection was refused: no process listens."""
    BROKEN = "broken"
    """The connection broke, or could not be made for another reason."""
    ANSWERED = "answered"
    """The endpoint answered something else than was expected."""


class ProbeError(Exception):
    """The endpoint is not usable now; `reason` says why in words for an operator."""

    def __init__(self, reason: str, fault: ProbeFault = ProbeFault.ANSWERED) -> None:
        super().__init__(reason)
        self.reason = reason
        self.fault = fault


class RefusedError(ProbeError):
    """The endpoint answered with a status other than 200. `body` is what was read of its body."""

    def __init__(self, reason: str, status: int, body: bytes = b"") -> None:
        super().__init__(reason)
        self.status = status
        self.body = body


class LargeAnswerError(ProbeError):
    pass


class WorkerClient:
    """Call workers, and keep connections for further calls. Proxies from the environment are not used.

    `api_key` is sent to the worker if given, and `via` names this gateway. `tls` returns the context for an https
    endpoint. `metrics_bytes` is the largest ``/metrics`` page that `probe.read_metrics` reads.
    """

    def __init__(
        self,
        api_key: str | None = None,
        tls: Callable[[Endpoint], ssl.SSLContext | None] | None = None,
        metrics_bytes: int = MAX_METRICS_BYTES,
        via: str = "",
    ) -> None:
        self.metrics_bytes = metrics_bytes
        self._via = f"via: 1.1 {via}\r\n" if via else ""
        self._authorization = "" if api_key is None else f"authorization: Bearer {api_key}\r\n"
        self._tls = tls
        self._lanes: dict[tuple[str, str], _WorkerConnections] = {}

    async def get(
        self,
        endpoint: Endpoint,
        path: str,
        timeout_s: float,
        max_bytes: int = MAX_ANSWER_BYTES,
        *,
        host: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return the body of the 200 answer to a GET, of at most `max_bytes`, within `timeout_s` in all. `host`
        replaces the endpoint's Host.

        Raises:
            RefusedError: another status.
            ProbeError: any other failure.
        """
        head = self._head(endpoint, "GET", path, headers or {}, host)
        return await self._fetch(endpoint, path, head, timeout_s, max_bytes)

    async def post_json(
        self,
        endpoint: Endpoint,
        path: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
        max_bytes: int = MAX_ANSWER_BYTES,
        error_bytes: int = 0,
    ) -> bytes:
        """Return the body of the 200 answer to a JSON POST, with the limits of `get`.

        Raises:
            RefusedError: another status. It has the first `error_bytes` of the body.
            ProbeError: any other failure.
        """
        every = {**(headers or {}), "content-type": "application/json", "content-length": str(len(body))}
        request = self._head(endpoint, "POST", path, every) + body
        return await self._fetch(endpoint, path, request, timeout_s, max_bytes, error_bytes)

    def close(self) -> None:
        while self._lanes:
            self._lanes.popitem()[1].close()

    async def aclose(self) -> None:
        """As `close`, and wait until the transports are closed."""
        self.close()
        await asyncio.sleep(0)  # transports close in the loop's next iteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _head(self, endpoint: Endpoint, method: str, path: str, headers: Mapping[str, str], host: str = "") -> bytes:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        text = (
            f"{method} {endpoint.base_path}{path} HTTP/1.1\r\nhost: {host or endpoint.sent_host}\r\naccept: */*\r\n"
            f"accept-encoding: identity\r\nuser-agent: warmroute-probe\r\n{self._via}{self._authorization}{lines}\r\n"
        )
        try:
            return text.encode("latin-1")
        except UnicodeEncodeError as error:
            raise ProbeError(f"{endpoint.url!r} is not a usable address: {_why(error)}") from None

    async def _fetch(
        self, endpoint: Endpoint, path: str, request: bytes, timeout_s: float, max_bytes: int, error_bytes: int = 0
    ) -> bytes:
        """Return the body of a 200 answer. Every failure is a `ProbeError`."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._lane(endpoint).ask(request, max_bytes, error_bytes)
        except ProbeError:
            raise
        except TimeoutError:
            raise ProbeError(f"{path} gave no answer within {timeout_s:g} s", ProbeFault.LATE) from None
        except LargeAnswer:
            raise LargeAnswerError(f"{path} answered more than {max_bytes} bytes: is this a vLLM server?") from None
        except Exception as error:  # Anything may listen on that port, and it must not end the watch.
            raise ProbeError(f"{path} broke off: {_why(error)}", ProbeFault.BROKEN) from None
        return _judged(answer, path)

    def _lane(self, endpoint: Endpoint) -> _WorkerConnections:
        key = endpoint.url, endpoint.tls_name
        lane = self._lanes.get(key)
        if lane is None:
            for old in [old for old, lane in self._lanes.items() if lane.idle]:
                del self._lanes[old]
            lane = self._lanes[key] = _WorkerConnections(endpoint, self._tls)
        return lane


class _WorkerConnections:
    def __init__(self, endpoint: Endpoint, tls: Callable[[Endpoint], ssl.SSLContext | None] | None) -> None:
        self._endpoint = endpoint
        self._tls = tls
        self._turns = asyncio.Semaphore(MAX_CALLS)
        self._calls = 0
        self._busy: set[Connection] = set()
        self._idle: list[Connection] = []

    @property
    def idle(self) -> bool:
        return not self._calls and not any(connection.alive for connection in self._idle)

    async def ask(self, request: bytes, max_bytes: int, error_bytes: int) -> WorkerAnswer:
        """Send one call, on a kept connection if there is one. Send it again if the worker had just closed that
        connection."""
        self._calls += 1
        try:
            async with self._turns:
                while (kept := self._kept()) is not None:
                    try:
                        return await self._on(kept, request, max_bytes, error_bytes)
                    except BrokenAnswer as error:
                        if not error.unsent:
                            raise
                return await self._on(await self._connect(), request, max_bytes, error_bytes)
        finally:
            self._calls -= 1

    def close(self) -> None:
        for connection in [*self._busy, *self._idle]:
            connection.close()
        self._idle.clear()

    def _kept(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            connection.wake()
            if connection.alive:
                return connection
        return None

    async def _connect(self) -> Connection:
        endpoint = self._endpoint
        tls = self._tls(endpoint) if self._tls is not None else None
        if tls is None and endpoint.scheme == "https":
            tls = ssl.create_default_context()
        name = endpoint.tls_name if tls is not None else None
        try:
            transport, connection = await asyncio.get_running_loop().create_connection(
                Connection, endpoint.host, endpoint.port, ssl=tls, server_hostname=name
            )
        except (OSError, ValueError) as error:  # a host that is not a name is a ValueError
            raise ProbeError(f"cannot connect to {endpoint.authority}: {_why(error)}", _fault(error)) from None
        keep_alive(transport.get_extra_info("socket"))
        return connection

    async def _on(self, connection: Connection, request: bytes, max_bytes: int, error_bytes: int) -> WorkerAnswer:
        self._busy.add(connection)
        try:
            return await connection.ask(request, max_bytes, error_bytes)
        finally:
            self._busy.discard(connection)
            if connection.reusable:
                connection.keep_open(KEEP_ALIVE_S)
                self._idle.append(connection)
            else:
                connection.close()


def _judged(answer: WorkerAnswer, path: str) -> bytes:
    if answer.status in _REDIRECTS:
        target = answer.header(b"location")[:200] or "nowhere"
        raise RefusedError(f"{path} redirects to {target}: give the worker's own address", answer.status)
    if answer.status == 508:
        raise RefusedError(f"{path} answered 508: the address leads back to the gateway that asks", answer.status)
    if answer.status != 200:
        raise RefusedError(f"{path} answered {answer.status}", answer.status, answer.body)
    if answer.compressed:
        raise ProbeError(f"{path} answered with a compressed body, which was not requested: is this a vLLM server?")
    return answer.body


def _fault(error: OSError | ValueError) -> ProbeFault:
    if not isinstance(error, OSError):
        return ProbeFault.BROKEN
    if is_refusal(error):
        return ProbeFault.REFUSED
    return ProbeFault.LATE if says_nothing(error) else ProbeFault.BROKEN


def _why(error: BaseException) -> str:
    return str(error)[:200] or type(error).__name__

"""Send traces to an OTLP receiver over HTTP, in batches, from a queue with a limit.

OpenTelemetry's SDK costs more than a tenth of a millisecond for a request; its part here is done by `router.tracing`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Iterator
from os import getpid

import httpx
import msgspec

from backends.foreign_json import read_json
from router.config.model import TracingConfig
from router.config.version import version
from router.metrics.instruments import Reading
from router.tracing.spans import envelope

log = logging.getLogger("warmroute.telemetry")

EXPORT_S = 2.0
"""Longest time that a trace waits for others."""
BATCH = 128
"""Requests whose traces are sent together."""
FLUSH_S = 2.0
"""Time for the last traces when the gateway ends."""
_RETRIES = 3
RETRY_S = 1.0
"""Time before the first retry; each later one waits twice as long."""
_AGAIN = frozenset({429, 502, 503, 504})
"""Statuses after which OTLP wants a retry."""


class _PartialSuccess(msgspec.Struct, rename="camel"):
    rejected_spans: str | int = 0


QUEUED_REQUESTS = 2_048
"""Requests whose traces wait to be sent. Those of a further request are dropped."""


class _Answer(msgspec.Struct, rename="camel"):
    partial_success: _PartialSuccess | None = None


_TIMEOUT_S = 10.0
"""Timeout of one request to the receiver, as OpenTelemetry's own default."""


class TraceExporter:
    """Sends the spans of requests to `tracing.endpoint`. Satisfies `TraceSink`."""

    def __init__(self, wanted: TracingConfig) -> None:
        assert wanted.endpoint is not None, "tracing is off"
        self._endpoint = wanted.endpoint
        self._headers = {"content-type": "application/json", **wanted.headers}
        self._queue: deque[bytes] = deque()
        self._before, self._after = envelope(_resource(wanted), version())
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.counts = {"sent": 0, "dropped": 0, "failed": 0}
        self._failing = False

    def export(self, spans: bytes) -> None:
        """Queue the spans of one request; drop them if the queue is full."""
        if len(self._queue) >= QUEUED_REQUESTS:
            self.counts["dropped"] += 1
            return
        self._queue.append(spans)
        if len(self._queue) == BATCH:
            self._due.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="traces")

    async def aclose(self) -> None:
        """Send what is queued, for at most `FLUSH_S`, and stop."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        try:
            async with asyncio.timeout(FLUSH_S), self._client() as client:
                while self._queue:
                    await self._send(client)
        except TimeoutError:
            self.counts["failed"] += len(self._queue)
            self._queue.clear()

    def readings(self) -> Iterator[Reading]:
        """Yield the requests whose traces were sent, dropped by a full queue, or not taken by the receiver."""
        for outcome, count in self.counts.items():
            yield "warmroute_traces", (outcome,), count

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            headers=self._headers, timeout=_TIMEOUT_S, verify=ssl.create_default_context(), trust_env=False
        )

    async def _run(self) -> None:
        async with self._client() as client:
            while True:
                try:
                    async with asyncio.timeout(EXPORT_S):
                        await self._due.wait()
                except TimeoutError:
                    pass
                self._due.clear()
                while self._queue:
                    await self._send(client)

    def batch(self, most: int) -> bytes:
        """Take the traces of at most `most` requests from the queue. Return them as the receiver gets them."""
        taken = [self._queue.popleft() for _ in range(min(most, len(self._queue)))]
        if not taken:
            return b""
        # The envelope is joined to the first and the last one, so that the rest is copied once.
        taken[0] = self._before + taken[0]
        taken[-1] += self._after
        return b",".join(taken)

    async def _send(self, client: httpx.AsyncClient) -> None:
        """Send one batch, again after a failure that may pass. A batch that fails for good is dropped."""
        requests = min(BATCH, len(self._queue))
        body = self.batch(requests)
        problem = ""
        for attempt in range(_RETRIES):
            try:
                answer = await client.post(self._endpoint, content=body)
            except httpx.HTTPError as error:
                problem = str(error) or type(error).__name__
            else:
                if answer.is_success:
                    self._sent(requests, answer)
                    return
                problem = f"HTTP {answer.status_code}"
                if answer.status_code not in _AGAIN:
                    break
            if attempt < _RETRIES - 1:
                await asyncio.sleep(RETRY_S * 2.0**attempt)
        self._failed(requests, problem)

    def _sent(self, requests: int, answer: httpx.Response) -> None:
        self.counts["sent"] += requests
        self._failing = False
        try:
            partial = read_json(answer.content or b"{}", _Answer).partial_success
            rejected = 0 if partial is None else int(partial.rejected_spans)
        except ValueError:  # as are msgspec's errors
            return
        if rejected:
            log.warning("the receiver of traces rejected spans", extra={"spans": rejected})

    def _failed(self, requests: int, problem: str) -> None:
        self.counts["failed"] += requests
        if not self._failing:
            self._failing = True
            log.warning("traces cannot be sent", extra={"endpoint": self._endpoint, "reason": problem})


def _resource(wanted: TracingConfig) -> dict[str, str]:
    instance = {"service.name": "warmroute", "service.instance.id": f"{socket.gethostname()}:{getpid()}"}
    return instance | wanted.resource | {"service.version": version()}

"""One try of a request at one worker: a connection found, the request sent, the answer judged by how it begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from router.core.edges import FailurePhase
from router.core.tickets import Ticket
from router.gateway.phases import Phase
from router.gateway.relay import Out
from router.gateway.sse import StreamError
from router.gateway.upstream import WorkerConnection
from router.gateway.wire import ResponseHead, request_to_worker

if TYPE_CHECKING:
    from router.gateway.exchange import Exchange

# Server errors that speak of the request and not of the worker: another worker would say the same.
_NOT_A_FAILURE = frozenset({501, 505})


class Attempt:
    """The request of `ticket` at its worker.

    Until the first real event its failure is told to `Exchange.attempt_failed`; from `Exchange.opened` on the answer
    is this worker's, and its loss goes to `Exchange.answer_lost`.
    """

    __slots__ = ("_dial", "_exchange", "_plane", "connection", "response", "response_read", "ticket")

    def __init__(self, exchange: Exchange, ticket: Ticket) -> None:
        self._exchange = exchange
        self._plane = exchange.plane
        self._dial: asyncio.Task[None] | None = None
        self.ticket = ticket
        self.connection: WorkerConnection | None = None
        self.response: ResponseHead | None = None
        self.response_read: Callable[[bytes], None] = _ignore

    # sending

    def begin(self, *, fresh: bool = False) -> None:
        """Send to the ticket's worker, on an idle connection unless `fresh`."""
        endpoint = self.ticket.candidate.endpoint.endpoint
        connection = None if fresh or self._exchange.upgrade else self._plane.pools.take(endpoint)
        if connection is not None:
            self._send(connection)
            return
        self._exchange.enter(Phase.DIAL)
        self._dial = self._plane.pools.dial(endpoint, self)

    def dialled(self, connection: WorkerConnection) -> None:
        """A new connection is there."""
        self._dial = None
        self._send(connection)

    def dial_failed(self, reason: str) -> None:
        """The worker cannot be reached."""
        self._dial = None
        self._exchange.attempt_failed(FailurePhase.CONNECT, f"cannot connect: {reason}")

    def _send(self, connection: WorkerConnection) -> None:
        exchange, candidate = self._exchange, self.ticket.candidate
        self.connection = connection
        self.response = None
        self.response_read = self._read_before_first
        exchange.enter(Phase.FIRST_EVENT)
        body, usage_frame = exchange.outgoing(self.ticket)
        head = request_to_worker(
            exchange.head,
            len(body),
            candidate.endpoint.endpoint,
            exchange.request_id,
            candidate.rank,
            exchange.client.peer.encode("ascii"),
            exchange.upgrade,
            plain=usage_frame is not None,
            worker=candidate.id,
        )
        connection.send(self, head, body, exchange.head.method == "HEAD")
        exchange.relay.attach(connection, usage_frame)
        if not exchange.client.writable:
            connection.pause_reading()

    # what the worker does

    def response_began(self, response: ResponseHead) -> None:
        """A final head: decide whether this is an answer or a failure."""
        self.response = response
        status = response.status
        if status == 503:
            self.let_go(reusable=True)
            retry_after_s = _seconds(response.fields.get(b"retry-after"))
            self._exchange.attempt_failed(FailurePhase.REFUSED, f"HTTP {status}", retry_after_s)
        elif status >= 500 and status not in _NOT_A_FAILURE:
            self.let_go(reusable=True)
            self._exchange.attempt_failed(FailurePhase.ANSWERED, f"HTTP {status}")
        elif status == 101:
            if self._exchange.upgrade and self.connection is not None:
                self._exchange.switch_protocols(response, self.connection)
            else:
                self.worker_lost("unexpected 101", True)

    def _read_before_first(self, data: bytes) -> None:
        """Body bytes while nothing has been let through yet."""
        assert self.response is not None
        verdict = self._exchange.relay.hold(data, self.response)
        if verdict is True:
            self._exchange.opened(self.response)
        elif isinstance(verdict, StreamError):
            self.let_go(reusable=False)
            phase = FailurePhase.REFUSED if verdict.status == 503 else FailurePhase.ANSWERED
            self._exchange.attempt_failed(phase, f"error as first event: {verdict.message}")
        elif verdict is None:
            self.worker_lost("no event among too many bytes", True)

    def response_ended(self) -> None:
        """The worker's answer is complete."""
        exchange, response = self._exchange, self.response
        assert response is not None
        if exchange.phase is Phase.FIRST_EVENT:
            if response.events and response.status == 200 and not response.bodiless:
                self.worker_lost("the stream ended without an event", False)
                return
            if exchange.relay.out is Out.NOTHING:
                exchange.opened(response)
        exchange.answered(response)

    def worker_lost(self, reason: str, broke_http: bool) -> None:
        """The answer will not be completed on this connection."""
        exchange, connection = self._exchange, self.connection
        stale = connection is not None and connection.reused and connection.silent and not broke_http
        self.let_go(reusable=False)
        if exchange.phase is not Phase.FIRST_EVENT:
            exchange.answer_lost(reason, broke_http)
        elif stale:
            # closed by the worker while it lay idle: says nothing about the worker, and does not count
            self._plane.metrics.redialled()
            self.begin(fresh=True)
        else:
            exchange.attempt_failed(FailurePhase.SENT, reason)

    def worker_writable(self, writable: bool) -> None:
        """Only a tunnel can write faster than its worker reads."""
        if self._exchange.tunnel is not None:
            self._exchange.client.set_reading(writable)

    def crashed(self) -> None:
        """A defect of ours, called from an `except` block."""
        self._exchange.crashed()

    # its end

    def let_go(self, *, reusable: bool) -> None:
        """Give up dialling, or give the connection back."""
        dial, self._dial = self._dial, None
        if dial is not None:
            dial.cancel()
        connection, self.connection = self.connection, None
        self.response_read = _ignore  # no cycles left behind: the collector has enough to do
        if connection is not None:
            if not self._exchange.client.writable:
                connection.resume_reading()
            connection.release(reusable)


def _ignore(data: bytes) -> None:
    """Bytes that nobody waits for."""


def _seconds(value: bytes | None) -> float | None:
    """Retry-After in seconds; dates and nonsense count as not given."""
    return float(value) if value is not None and len(value) <= 6 and value.isdigit() else None

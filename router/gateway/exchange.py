"""One forwarded request's life: identified, placed, sent, perhaps sent again, relayed, ended.

Every path through here ends the ticket exactly once (`Dispatcher.retry`, `finished`, `failed` or `cancelled`) and
calls `ClientConnection.exchange_ended` exactly once, or not at all when the client has left.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from router.core.edges import FailurePhase, Request, Usage
from router.core.tickets import Hold, Reject, Ticket
from router.errors import ErrorKind, RequestError
from router.gateway.books import Books
from router.gateway.head import RequestHead
from router.gateway.paths import Route
from router.gateway.phases import Phase
from router.gateway.placing import Placing, stored_response_id
from router.gateway.plane import Plane
from router.gateway.relay import Out, Relay
from router.gateway.sse import StreamError
from router.gateway.tunnel import Tunnel
from router.gateway.upstream import WorkerConnection
from router.gateway.usage import find_usage
from router.gateway.wire import ResponseHead, connection_line, error_body, own_reply, request_to_worker, retry_after

if TYPE_CHECKING:
    from router.gateway.client import ClientConnection

log = logging.getLogger("warmroute.gateway")

CLIENT_LEFT = 499
"""Status in log and metrics for a client that left before it was answered (nginx's convention)."""
# Server errors that speak of the request and not of the worker: another worker would say the same.
_NOT_A_FAILURE = frozenset({501, 505})


class Exchange:
    """See the module. `request_id` is the client's or ours; `tunnel` is set once protocols have been switched."""

    def __init__(
        self, plane: Plane, client: ClientConnection, head: RequestHead, body: bytes, route: Route, request_id: bytes
    ) -> None:
        self.plane = plane
        self.client = client
        self.head = head
        self.body = body
        self.route = route
        self.request_id = request_id
        self.phase = Phase.IDENTITY
        self.ticket: Ticket | None = None
        self.tunnel: Tunnel | None = None
        self.relay = Relay(client.write, plane.time, head, plane.cors.enabled, self._progressed)
        self.response_read: Callable[[bytes], None] = self._read_before_first
        self._request: Request | None = None
        self._connection: WorkerConnection | None = None
        self._response: ResponseHead | None = None
        self._task: asyncio.Task[None] | None = None
        self._books = Books(plane, route.pattern, head, request_id, client.peer, len(body))
        self._phase_began_s = self._books.arrived_s
        self._next_comment_s = math.inf
        self._body_bytes = len(body)
        self._upgrade = head.websocket and route.upgrades

    # placing

    def start(self) -> None:
        """Find out what is asked for and place it."""
        self.plane.exchanges.add(self)
        arrived_s = self._books.arrived_s
        placing = Placing(
            self.plane, self.route, self.head, self.body, self.request_id, arrived_s, self._described, self.crashed
        )
        try:
            reading = placing.read()
            if reading.stream:
                self._next_comment_s = arrived_s + self.plane.config.timeouts.header_hold_s
            self._enter(Phase.IDENTITY)
            task = placing.start(reading)
        except RequestError as error:
            self._answer(error)
            return
        if task is not None:
            self._task = task

    def _described(self, request: Request) -> None:
        self._task = None
        self._request = request
        self.place()

    def place(self) -> None:
        """Ask for a worker; also called again, while waiting for one, when the fleet has changed."""
        assert self._request is not None
        plane = self.plane
        now_s = plane.time()
        placed = plane.dispatcher.dispatch(self._request, now_s)
        if isinstance(placed, Hold):
            self._wait(placed)
            return
        if self.phase is Phase.WORKER:
            plane.waiting.leave(self)
            plane.metrics.held(now_s - self._phase_began_s, isinstance(placed, Ticket))
        if isinstance(placed, Reject):
            self._answer(placed.error)
            return
        self.ticket = placed
        self._attempt(fresh=False)

    def _wait(self, hold: Hold) -> None:
        if self.phase is Phase.WORKER:
            return
        if not self.plane.config.timeouts.no_worker_wait_s:
            self._answer(RequestError(ErrorKind.NO_WORKER, hold.reason))
        elif self.plane.waiting.enter(self):
            self._enter(Phase.WORKER)
        else:
            self._answer(RequestError(ErrorKind.TOO_MANY_REQUESTS_HELD, "too many requests wait for a worker"))

    # one attempt

    def _attempt(self, fresh: bool) -> None:
        """Send to the ticket's worker, on an idle connection unless `fresh`."""
        assert self.ticket is not None
        self._books.worker = self.ticket.candidate.id
        endpoint = self.ticket.candidate.endpoint.endpoint
        connection = None if fresh or self._upgrade else self.plane.pools.take(endpoint)
        if connection is not None:
            self._send(connection)
            return
        self._enter(Phase.DIAL)
        self._task = self.plane.pools.dial(endpoint, self)

    def dialled(self, connection: WorkerConnection) -> None:
        """A new connection is there."""
        self._task = None
        self._send(connection)

    def dial_failed(self, reason: str) -> None:
        """The worker cannot be reached."""
        self._task = None
        self._attempt_failed(FailurePhase.CONNECT, f"cannot connect: {reason}")

    def _send(self, connection: WorkerConnection) -> None:
        assert self.ticket is not None
        candidate = self.ticket.candidate
        self._connection = connection
        self._response = None
        self.response_read = self._read_before_first
        self._enter(Phase.FIRST_EVENT)
        head = request_to_worker(
            self.head,
            self._body_bytes,
            candidate.endpoint.endpoint,
            self.request_id,
            candidate.rank,
            self.client.peer.encode("ascii"),
            self._upgrade,
        )
        connection.send(self, head, self.body, self.head.method == "HEAD")
        self.relay.attach(connection)
        if not self.client.writable:
            connection.pause_reading()

    def _attempt_failed(self, phase: FailurePhase, reason: str, retry_after_s: float | None = None) -> None:
        """Nothing of this attempt has reached the client: another worker may answer."""
        assert self.ticket is not None
        ticket, self.ticket = self.ticket, None
        plane = self.plane
        outcome = plane.dispatcher.retry(ticket, phase, plane.time(), reason, retry_after_s)
        if isinstance(outcome, Reject):
            self._answer(outcome.error)
            return
        plane.metrics.retried(phase)
        self.ticket = outcome
        self._attempt(fresh=False)

    # what the worker does

    def response_began(self, response: ResponseHead) -> None:
        """A final head: decide whether this is an answer or a failure."""
        self._response = response
        status = response.status
        if status in (429, 503):
            self._let_go(reusable=True)
            self._attempt_failed(FailurePhase.REFUSED, f"HTTP {status}", _seconds(response.fields.get(b"retry-after")))
        elif status >= 500 and status not in _NOT_A_FAILURE:
            self._let_go(reusable=True)
            self._attempt_failed(FailurePhase.SENT, f"HTTP {status}")
        elif status == 101:
            self._switch_protocols(response)

    def _read_before_first(self, data: bytes) -> None:
        """Body bytes while nothing has been let through yet."""
        assert self._response is not None
        verdict = self.relay.hold(data, self._response)
        if verdict is True:
            self._open(self._response)
        elif isinstance(verdict, StreamError):
            self._let_go(reusable=False)
            refused = verdict.status in (429, 503)
            reason = f"error as first event: {verdict.message}"
            self._attempt_failed(FailurePhase.REFUSED if refused else FailurePhase.SENT, reason)
        elif verdict is None:
            self.worker_lost("no event among too many bytes", True)

    def _open(self, response: ResponseHead) -> None:
        """The first real event: from here on this worker's answer is the answer."""
        plane = self.plane
        now_s = plane.time()
        assert self.ticket is not None and self._connection is not None
        self._books.first_event(now_s)
        if response.events:
            plane.dispatcher.first_token(self.ticket, now_s)
        if self.route.stores:
            self._learn_stored(self._connection.pieces)
        self._next_comment_s = math.inf
        self.body = b""  # no further attempt will need it
        self.response_read = self.relay.open(
            response, self.plane.head_lines(self.head, self.request_id, self.ticket), self._keep_alive
        )
        self._enter(Phase.STREAM)

    def _learn_stored(self, pieces: list[bytes]) -> None:
        response_id = stored_response_id(pieces)
        if response_id is not None and self.ticket is not None:
            self.plane.pins.learn(response_id, self.ticket.candidate.id)

    def _progressed(self, gaps_s: Sequence[float], events: int, now_s: float) -> None:
        self.plane.metrics.gaps(gaps_s)
        if self.ticket is not None:
            self.plane.dispatcher.progress(self.ticket, events, now_s)

    def response_ended(self) -> None:
        """The worker's answer is complete."""
        response, connection, ticket = self._response, self._connection, self.ticket
        assert response is not None and connection is not None and ticket is not None
        now_s = self.plane.time()
        relay = self.relay
        if self.phase is Phase.FIRST_EVENT:
            if response.events and response.status == 200 and not response.bodiless:
                self.worker_lost("the stream ended without an event", False)
                return
            if relay.out is Out.NOTHING:
                self._open(response)
        relay.flush(now_s)
        usage = find_usage(relay.tail())
        keep = relay.end_as_event() if relay.out is Out.COMMENTS else relay.end()
        self._let_go(reusable=True)
        self.ticket = None
        self.plane.dispatcher.finished(ticket, usage, now_s, status=response.status)
        self._observe(usage)
        self._end(keep)

    def _observe(self, usage: Usage) -> None:
        request = self._request
        if request is None or request.prompt is None or request.model is None or usage.prompt_tokens is None:
            return
        self.plane.identity.observe_usage(request.model, request.prompt, usage.prompt_tokens)

    def worker_lost(self, reason: str, broke_http: bool) -> None:
        """The answer will not be completed on this connection."""
        connection = self._connection
        stale = connection is not None and connection.reused and connection.silent and not broke_http
        self._let_go(reusable=False)
        if self.phase is Phase.TUNNEL:
            self._tunnel_ended(reason)
        elif self.phase is Phase.STREAM:
            kind = ErrorKind.BAD_UPSTREAM if broke_http else ErrorKind.WORKER_DIED_IN_STREAM
            self._stream_failed(kind, f"the worker's answer broke off: {reason}")
        elif stale:
            # closed by the worker while it lay idle: says nothing about the worker, and does not count
            self.plane.metrics.redialled()
            self._attempt(fresh=True)
        else:
            self._attempt_failed(FailurePhase.SENT, reason)

    def worker_writable(self, writable: bool) -> None:
        """Only a tunnel can write faster than its worker reads."""
        if self.tunnel is not None:
            self.client.set_reading(writable)

    # what the client does

    def client_gone(self) -> None:
        """The client's connection is gone: so is the request, at once."""
        if self.phase is Phase.OVER:
            return
        phase = "stream" if self.phase in (Phase.STREAM, Phase.TUNNEL) else "before_first"
        self._stop_waiting()
        self._let_go(reusable=False)
        plane = self.plane
        now_s = plane.time()
        self.relay.flush(now_s)
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            if self.phase is Phase.TUNNEL:
                plane.dispatcher.finished(ticket, Usage(), now_s)
            else:
                plane.dispatcher.cancelled(ticket, now_s)
        plane.metrics.client_aborted(phase)
        self._settle(self.relay.status or CLIENT_LEFT)

    def client_writable(self, writable: bool) -> None:
        """The client stopped, or began again, to take what is written to it."""
        if self._connection is not None:
            if writable:
                self._connection.resume_reading()
            else:
                self._connection.pause_reading()
        self.relay.last_read_s = self.plane.time()  # either way the worker was not idle until now

    # time

    def expired(self, now_s: float) -> None:
        """A deadline may have passed: see which, and arm the next."""
        timeouts = self.plane.config.timeouts
        if now_s >= self._phase_deadline_s():
            self._phase_expired()
        elif now_s >= self._books.arrived_s + timeouts.total_s and self.phase is not Phase.TUNNEL:
            self._give_up(ErrorKind.TOTAL_TIMEOUT, "the request took too long")
        elif now_s >= self._next_comment_s:
            self._next_comment_s = now_s + timeouts.comment_interval_s
            self.relay.comment(self.plane.head_lines(self.head, self.request_id, None), not self._keep_alive)
        self._arm()

    def _phase_deadline_s(self) -> float:
        began_s = self._phase_began_s
        if self.phase is Phase.STREAM:
            began_s = self.relay.last_read_s
        elif self.tunnel is not None:
            began_s = self.tunnel.last_read_s
        return began_s + self.plane.phase_limits_s[self.phase]

    def _phase_expired(self) -> None:
        match self.phase:
            case Phase.WORKER:
                self.plane.waiting.leave(self)
                self.plane.metrics.held(self.plane.time() - self._phase_began_s, False)
                self._answer(RequestError(ErrorKind.NO_WORKER, "no worker became ready for this model in time"))
            case Phase.DIAL:
                self._stop_waiting()
                self._attempt_failed(FailurePhase.CONNECT, "connecting took too long")
            case Phase.FIRST_EVENT:
                self._let_go(reusable=False)
                self._attempt_failed(FailurePhase.SENT, "no first event in time")
            case Phase.TUNNEL:
                self._tunnel_ended(None)
            case _ if not self.client.writable:
                self.client.abort()  # it has taken nothing for as long as a worker may stay silent
            case _:
                self._stream_failed(ErrorKind.STREAM_IDLE_TIMEOUT, "the worker's stream stalled")

    def _arm(self) -> None:
        if self.phase is not Phase.OVER:
            total_s = self._books.arrived_s + self.plane.config.timeouts.total_s
            if self.phase is Phase.TUNNEL:
                total_s = math.inf
            self.client.deadline_s = min(self._phase_deadline_s(), total_s, self._next_comment_s)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._phase_began_s = self.plane.time()
        self._arm()

    # tunnels

    def _switch_protocols(self, response: ResponseHead) -> None:
        connection = self._connection
        assert connection is not None
        if not self._upgrade:
            self.worker_lost("unexpected 101", True)
            return
        self.relay.status = 101
        self.tunnel = Tunnel(connection.write, self.client.write, self.plane.time)
        connection.tunnel = self.tunnel.from_worker
        self.relay.open(response, self.plane.head_lines(self.head, self.request_id, self.ticket), keep_alive=True)
        self._enter(Phase.TUNNEL)
        self.client.flush_into(self.tunnel)

    def _tunnel_ended(self, reason: str | None) -> None:
        self._let_go(reusable=False)
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            self.plane.dispatcher.finished(ticket, Usage(), self.plane.time())
        if reason is not None:
            log.debug("tunnel ended", extra={"worker": self._books.worker, "reason": reason})
        self._end(keep=False)

    # endings

    @property
    def _keep_alive(self) -> bool:
        return self.head.keep_alive and self.client.may_go_on

    def _answer(self, error: RequestError) -> None:
        """Answer with an error of ours; nothing of a worker's answer has been let through."""
        self._stop_waiting()
        if self.relay.out is Out.COMMENTS:
            self.plane.metrics.error(error.kind.spec.code, "before_first")
            self._end(self.relay.break_off(error.kind, error.message))
            return
        phase = "request" if self._request is None else "before_first"
        self.plane.metrics.error(error.kind.spec.code, phase)
        status = error.kind.spec.status
        lines = self.plane.head_lines(self.head, self.request_id, None) + retry_after(error)
        lines += connection_line(self.head, close=not self._keep_alive)
        reply = own_reply(status, error_body(error), lines, without_body=self.head.method == "HEAD")
        self.relay.status = status
        self.relay.response_bytes += len(reply)
        self.client.write(reply)
        self._end(keep=True)

    def _give_up(self, kind: ErrorKind, message: str) -> None:
        """No retry, and nobody's fault: the time is up, or we have a defect."""
        self._stop_waiting()
        self._let_go(reusable=False)
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            self.plane.dispatcher.cancelled(ticket, self.plane.time())
        if self.phase is Phase.STREAM:
            self._break_off(kind, message)
        else:
            self._answer(RequestError(kind, message))

    def _stream_failed(self, kind: ErrorKind, message: str) -> None:
        """The worker failed a started answer."""
        self._let_go(reusable=False)
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            self.plane.dispatcher.failed(ticket, FailurePhase.STREAM, self.plane.time(), message)
        self._break_off(kind, message)

    def _break_off(self, kind: ErrorKind, message: str) -> None:
        """A started answer cannot be finished: say so in the stream, or at least show it as truncated."""
        self.relay.flush(self.plane.time())
        self.plane.metrics.error(kind.spec.code, "stream")
        self._end(keep=self.relay.break_off(kind, message))

    def crashed(self) -> None:
        """A defect of ours, called from an `except` block: log it, end what can be ended."""
        log.exception("exchange failed", extra={"request_id": self.request_id.decode("latin-1")})
        if self.phase is Phase.OVER:
            return
        self._give_up(ErrorKind.INTERNAL, "internal error")

    def _stop_waiting(self) -> None:
        self.plane.waiting.leave(self)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def _let_go(self, reusable: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if not self.client.writable:
                connection.resume_reading()
            connection.release(reusable)

    def _end(self, keep: bool) -> None:
        self._settle(self.relay.status)
        self.client.exchange_ended(keep and self.head.keep_alive)

    def _settle(self, status: int) -> None:
        """The books of one request."""
        self.phase = Phase.OVER
        self.plane.ended(self)
        self._books.settle(status, self.relay)
        # no cycles left behind: the collector has enough to do
        self.response_read = _ignore
        self.relay.close()


def _ignore(data: bytes) -> None:
    """Bytes that nobody waits for any more."""


def _seconds(value: bytes | None) -> float | None:
    """Retry-After in seconds; dates and nonsense count as not given."""
    return float(value) if value is not None and len(value) <= 6 and value.isdigit() else None

"""One forwarded request's life: identified, placed, sent, perhaps sent again, relayed, ended.

Every path through here ends the ticket exactly once (`Dispatcher.retry`, `finished`, `failed` or `cancelled`) and
calls `ClientConnection.exchange_ended` exactly once, or not at all when the client has left.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from router.errors import ErrorKind, RequestError
from router.gateway.admission import admit
from router.gateway.books import Books
from router.gateway.http.error_format import error_body
from router.gateway.http.headers import connection_line, own_reply, retry_after
from router.gateway.http.request_head import RequestHead
from router.gateway.http.response_head import ResponseHead
from router.gateway.http.routes import Route
from router.gateway.http.tunnel import Tunnel
from router.gateway.http.upstream_connection import UpstreamConnection
from router.gateway.http.usage import find_usage
from router.gateway.phases import Phase
from router.gateway.placing import Placing, Reading, stored_response_id
from router.gateway.plane import Plane
from router.gateway.relay import Out, Relay
from router.gateway.tries import Tries
from router.placement.lifecycle_events import FailurePoint, Request, Usage
from router.placement.tickets import Held, Queued, Reject

if TYPE_CHECKING:
    from router.gateway.client import ClientConnection

log = logging.getLogger("warmroute.gateway")

SHUT_DOWN = "the gateway is shutting down"
MIN_BYTES_PER_S = 16.0
"""What a worker must bring of a started answer while no event ends: an event of a megabyte may take its time."""
CLIENT_LEFT = 499
"""Status in log and metrics for a client that left before it was answered (nginx's convention)."""


class Exchange(Tries):
    """See the module. `request_id` is the client's or ours; `upgrade`: a protocol switch is asked for and allowed;
    `tunnel` is set once it has been made."""

    _progress = (-math.inf, 0, 0)
    """When it was last looked at whether the answer goes on, and how many events and bytes there were."""

    def __init__(
        self, plane: Plane, client: ClientConnection, head: RequestHead, body: bytes, route: Route, request_id: bytes
    ) -> None:
        self.plane = plane
        self.client = client
        self.caller = client.caller
        self.withheld = client.caller.withheld
        self.head = head
        self.body = body
        self.route = route
        self.request_id = request_id
        self.phase = Phase.IDENTITY
        self.ticket = None
        self.tunnel: Tunnel | None = None
        self.upgrade = head.websocket and route.upgrades and not head.has_body
        self.relay = Relay(client, plane.time, head, plane.cors.enabled, self.progressed)
        self._request: Request | None = None
        self._attempt = None
        self._identifying: asyncio.Task[None] | None = None
        self._rewriting = None
        self._books = Books(plane, route.pattern, head, request_id, client.peer, len(body), client.caller.name)
        self._phase_began_s = self._books.arrived_s
        self._last_s = self._books.arrived_s + plane.config.timeouts.total_s
        self._next_comment_s = math.inf
        self._told: bool | None = None
        self.body_digest = None

    # placing

    def start(self) -> None:
        """Find out what is asked for and place it."""
        plane = self.plane
        plane.exchanges.add(self)
        if len(plane.exchanges) > plane.max_requests:
            self._answer(RequestError(ErrorKind.CONCURRENCY_LIMIT, "too many requests in progress; try again later"))
            return
        arrived_s = self._books.arrived_s
        placing = Placing(
            self.plane,
            self.route,
            self.head,
            self.body,
            self.request_id,
            arrived_s,
            self.caller,
            self._described,
            self.crashed,
        )
        try:
            reading = placing.read()
            if reading is not None:
                self._identify(placing, reading)
        except RequestError as error:
            self._answer(error)
            return
        if reading is None:
            self._identifying = plane.loop.create_task(self._read_in_slices(placing))
            self._arm()

    async def _read_in_slices(self, placing: Placing) -> None:
        try:
            reading = await placing.read_in_slices()
            self._identifying = None
            self._identify(placing, reading)
        except RequestError as error:
            self._identifying = None
            self._answer(error)
        except Exception:
            self._identifying = None
            self.crashed()

    def _identify(self, placing: Placing, reading: Reading) -> None:
        """Go on with what was read of the body.

        Raises:
            RequestError: it asks for what is not known here, or what its caller may not have.
        """
        plane = self.plane
        salt = admit(self.route, self.caller, self.head, self.body, reading.fields)
        if salt is not None:
            self.body = plane.rewrites.salt(self.body, salt)
            self.withheld = self.caller.withheld_salted
        self.body_digest = reading.intake.digest if reading.intake is not None else None
        if reading.stream:
            self._next_comment_s = self._books.arrived_s + plane.config.timeouts.header_delay_s
        if plane.rewrites.enabled:
            self._rewriting = plane.rewrites.of(self.head, reading.intake)
        identifying = placing.start(reading)
        if identifying is not None:
            self._identifying = identifying
            self._arm()

    def _described(self, request: Request) -> None:
        self._identifying = None
        self._request = request
        self.place()

    def place(self) -> None:
        """Ask for a worker; also called again, while waiting for one, when that may have become another answer."""
        assert self._request is not None
        plane = self.plane
        plane.hold_queue.leave(self)
        now_s = plane.time()
        started_s = perf_counter()
        try:
            within = self.within()
        except RequestError as error:
            self._answer(error)
            return
        placed = plane.dispatcher.dispatch(self._request, now_s, may_hold=self._may_defer(), within=within)
        plane.metrics.decision_took(perf_counter() - started_s)
        if isinstance(placed, Queued):
            self._wait(placed)
            return
        if self.phase is Phase.WORKER:
            plane.waiting.leave(self)
            plane.metrics.queued(now_s - self._phase_began_s, not isinstance(placed, Reject))
        if isinstance(placed, Held):
            plane.hold_queue.enter(self, placed)
            if self.phase is not Phase.DEFERRED:
                self.enter(Phase.DEFERRED)
            return
        if self.phase is Phase.DEFERRED:
            plane.metrics.held(now_s - self._phase_began_s)
        if isinstance(placed, Reject):
            self._answer(placed.error)
            return
        self._try(placed)

    def _may_defer(self) -> bool:
        if not self.plane.hold_queue.open:
            return False
        account = self.caller.account
        # one that waits already is counted
        return account is None or self.phase is Phase.WORKER or account.may_queue

    def _wait(self, hold: Queued) -> None:
        if self.phase is Phase.WORKER:
            return
        account = self.caller.account
        if not self.plane.config.timeouts.queue_s:
            self._answer(RequestError(ErrorKind.NO_WORKER, hold.reason))
        elif account is not None and not account.may_queue:
            self._answer(account.refuse_to_queue())
        elif self.plane.waiting.enter(self):
            self.enter(Phase.WORKER)
        else:
            self._answer(RequestError(ErrorKind.TOO_MANY_REQUESTS, "too many requests wait for a worker"))

    # the answer

    def opened(self, response: ResponseHead) -> None:
        """The first real event: from here on this worker's answer is the answer."""
        plane, attempt = self.plane, self._attempt
        now_s = plane.time()
        assert self.ticket is not None and attempt is not None and attempt.connection is not None
        self._books.first_event(now_s)
        if response.events and not self.relay.refused:
            plane.dispatcher.first_token(self.ticket, now_s)
        if self.route.stores:
            self._learn_stored(attempt.connection.pieces)
        self._next_comment_s = math.inf
        if plane.quarantine.active:
            plane.quarantine.survived(self)
        self.body = b""  # no further attempt will need it
        self.client.body_done()
        lines = plane.head_lines(self.head, self.request_id, self.ticket)
        attempt.response_read = self.relay.open(response, lines, self._told_keep_alive())
        self.enter(Phase.STREAM)

    def _learn_stored(self, pieces: list[bytes]) -> None:
        response_id = stored_response_id(pieces)
        if response_id is not None and self.ticket is not None:
            self.plane.pins.learn(response_id, self.ticket.candidate.id)

    def progressed(self, gaps_s: Sequence[float], events: int, now_s: float) -> None:
        """A batch of reads of the answer."""
        self.plane.metrics.gaps(gaps_s)
        if self.ticket is not None:
            self.plane.dispatcher.progress(self.ticket, events)

    def answered(self, response: ResponseHead) -> None:
        """The worker's answer is complete."""
        ticket, relay = self.ticket, self.relay
        assert ticket is not None
        now_s = self.plane.time()
        relay.flush(now_s)
        self.plane.quarantine.answered(self, now_s)
        usage = find_usage(relay.tail())
        if self._rewriting is not None:
            self._rewriting.answered(ticket.candidate.endpoint, response, relay, usage)
        keep = relay.end_as_event() if relay.out is Out.COMMENTS else relay.end()
        self._let_go(reusable=True)
        self.ticket = None
        self.plane.dispatcher.finished(ticket, usage, now_s, status=relay.refused or response.status)
        self._observe(usage)
        self._end(keep)

    def _observe(self, usage: Usage) -> None:
        request = self._request
        if request is None or request.prompt is None or request.model is None or usage.prompt_tokens is None:
            return
        self.plane.identity.observe_usage(request.model, request.prompt, usage.prompt_tokens)

    def error_answered(self, response: ResponseHead) -> None:
        """The worker's server error is the answer: no other worker is to be tried."""
        plane, relay, ticket = self.plane, self.relay, self.ticket
        assert ticket is not None
        reason = f"HTTP {response.status}"
        if relay.out is Out.COMMENTS and not relay.holds_error():
            self._let_go(reusable=True)
            self.attempt_failed(FailurePoint.ANSWERED, reason)
            return
        self.ticket = None
        plane.dispatcher.failed(ticket, FailurePoint.ANSWERED, plane.time(), reason)
        if relay.out is Out.COMMENTS:
            keep = relay.end_as_event()
        else:
            relay.open(response, plane.head_lines(self.head, self.request_id, ticket), self._told_keep_alive())
            keep = relay.end()
        self._let_go(reusable=True)
        self._end(keep)

    def answer_lost(self, reason: str, broke_http: bool) -> None:
        """The worker's answer, of which the client has seen a part, broke off."""
        if self.phase is Phase.TUNNEL:
            self._tunnel_ended(reason)
        else:
            kind = ErrorKind.BAD_UPSTREAM if broke_http else ErrorKind.WORKER_DIED_IN_STREAM
            self._stream_failed(kind, f"the worker's answer broke off: {reason}")

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
        connection = self._attempt.connection if self._attempt is not None else None
        if connection is not None:
            if writable:
                connection.resume_reading()
            else:
                connection.pause_reading()
        now_s = self.relay.last_read_s = self.plane.time()  # either way the worker was not idle until now
        self._progress = now_s, self.relay.events, self.relay.response_bytes

    # time

    def expired(self, now_s: float) -> None:
        """A deadline may have passed: see which, and arm the next."""
        timeouts = self.plane.config.timeouts
        if now_s >= self._phase_deadline_s():
            self._phase_expired()
        elif self.phase is Phase.STREAM and self._trickles(now_s):
            self._stream_failed(ErrorKind.STREAM_IDLE_TIMEOUT, "the worker's stream stalled: it only trickles")
        elif now_s >= self._last_s:
            self._give_up(ErrorKind.TOTAL_TIMEOUT, "the request took too long")
        elif now_s >= self._next_comment_s:
            self._next_comment_s = now_s + timeouts.comment_interval_s
            self.relay.comment(self.plane.head_lines(self.head, self.request_id, None), not self._told_keep_alive())
        self._arm()

    def _trickles(self, now_s: float) -> bool:
        """Whether the worker has brought next to nothing since the last look, a whole idle limit ago. (Such looks come
        by themselves: the deadline of a stream that goes on is found to have moved.)"""
        relay = self.relay
        relay.flush(now_s)
        seen_s, events, size_bytes = self._progress
        seen_s = max(seen_s, self._phase_began_s)
        if now_s - seen_s < self.plane.phase_limits_s[Phase.STREAM]:
            return False
        self._progress = now_s, relay.events, relay.response_bytes
        if relay.events > events or not self.client.writable:
            return False
        return relay.response_bytes - size_bytes < MIN_BYTES_PER_S * (now_s - seen_s)

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
                self.plane.metrics.queued(self.plane.time() - self._phase_began_s, False)
                self._answer(RequestError(ErrorKind.NO_WORKER, "no worker became ready for this model in time"))
            case Phase.DIAL:
                self._let_go(reusable=False)
                self.attempt_failed(FailurePoint.CONNECT, "connecting took too long")
            case Phase.FIRST_EVENT:
                self._let_go(reusable=False)
                self.attempt_failed(FailurePoint.SENT, "no first event in time")
            case Phase.TUNNEL:
                self._tunnel_ended(None)
            case _ if not self.client.writable:
                self.client.abort()  # it has taken nothing for as long as a worker may stay silent
            case _:
                self._stream_failed(ErrorKind.STREAM_IDLE_TIMEOUT, "the worker's stream stalled")

    def _arm(self) -> None:
        if self.phase is not Phase.OVER:
            self.client.deadline_s = min(self._phase_deadline_s(), self._last_s, self._next_comment_s)

    def enter(self, phase: Phase) -> None:
        """Begin a phase, and its time limit."""
        plane = self.plane
        self.phase = phase
        began_s = self._phase_began_s = plane.time()
        self.client.deadline_s = min(began_s + plane.phase_limits_s[phase], self._last_s, self._next_comment_s)

    # tunnels

    def switch_protocols(self, response: ResponseHead, connection: UpstreamConnection) -> None:
        """The worker agreed to the client's upgrade."""
        self.relay.status = 101
        self.tunnel = Tunnel(connection.write, self.client.write, self.plane.time)
        connection.tunnel = self.tunnel.from_worker
        self.relay.open(response, self.plane.head_lines(self.head, self.request_id, self.ticket), keep_alive=True)
        self._last_s = math.inf
        self.enter(Phase.TUNNEL)
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

    def _told_keep_alive(self) -> bool:
        """Whether the answer's head lets the connection go on: settled when it is first asked for, and then kept to."""
        if self._told is None:
            self._told = self.head.keep_alive and self.client.may_go_on
        return self._told

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
        lines += connection_line(self.head, close=not self._told_keep_alive())
        reply = own_reply(status, error_body(error, self.head.path), lines, without_body=self.head.method == "HEAD")
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

    def shut_down(self) -> None:
        """The time for requests in progress is up."""
        if self.phase is Phase.TUNNEL:
            self._tunnel_ended(None)
        elif self.phase is not Phase.OVER:
            self._give_up(ErrorKind.SHUTTING_DOWN, SHUT_DOWN)

    def _stream_failed(self, kind: ErrorKind, message: str) -> None:
        """The worker failed a started answer."""
        self._let_go(reusable=False)
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            self.plane.dispatcher.failed(ticket, FailurePoint.STREAM, self.plane.time(), message)
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
        self.plane.hold_queue.leave(self)
        identifying, self._identifying = self._identifying, None
        if identifying is not None:
            identifying.cancel()

    def _end(self, keep: bool) -> None:
        self._settle(self.relay.status)
        self.client.exchange_ended(keep and self._told_keep_alive())

    def _settle(self, status: int) -> None:
        """The books of one request."""
        self.phase = Phase.OVER
        self.plane.ended(self)
        self._books.settle(status, self.relay)
        self._attempt = None
        self.relay.close()

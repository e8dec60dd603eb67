from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from router.errors import ErrorKind, RequestError
from router.gateway.flow.answer.relay import Relay, ResponseProgress
from router.gateway.flow.attempt.attempt import Attempt
from router.gateway.flow.deadlines import Trickle
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.flow.outcomes import Failure
from router.gateway.flow.services import GatewayServices, RequestClient
from router.gateway.flow.transitions import Effect, RequestState
from router.gateway.http.client.tunnel import Tunnel
from router.gateway.http.upstream.headers import connection_line, own_reply, retry_after
from router.placement.request import FailurePoint, Usage
from router.placement.tickets import Ticket
from router.requests.answers.error_format import error_body
from router.requests.answers.usage import find_usage
from router.requests.layer import RequestEnd
from router.requests.pins import stored_response_id

# A module constant, because looking up a member of an enum is slow.
_COMMENTS: Final = ResponseProgress.COMMENTS
_NOTHING_USED: Final = Usage(0, 0)
CLIENT_LEFT = 499
"""Status in log and metrics if the client left before the end of its answer (nginx's convention)."""


class Responder:
    """Writes one response, and ends the load reservation of its attempt.

    `relay` writes the answer of the attempt `answering`. `reply` and `break_off` report `error`.
    """

    __slots__ = (
        "_answered", "_began", "_client", "_keep", "_outbound", "_promised", "_services", "_trickle", "answering",
        "error", "left_in", "overdrawn", "relay", "tunnel",
    )  # fmt: skip

    def __init__(
        self,
        services: GatewayServices,
        client: RequestClient,
        outbound: OutboundRequest,
    ) -> None:
        self._services = services
        self._client = client
        self._outbound = outbound
        self._keep = False
        """The response ended such that the next one can follow on the connection."""
        self._promised: bool | None = None
        """The response's head keeps the connection open; None before that is decided."""
        self._trickle: Trickle | None = None
        self._began = False
        """Part of a worker's answer has gone to the client."""
        self._answered: Usage | None = None
        """The usage of a complete answer, zero for an error; None without one."""
        self.answering: Attempt | None = None
        self.left_in: RequestState | None = None
        """The state in which the client closed its connection, before its answer was complete."""
        self.error: RequestError | None = None
        self.tunnel: Tunnel | None = None
        """Set after a protocol switch."""
        self.overdrawn = False
        """The tunnel has used more than its caller's bucket holds, and the tokens lent beside it."""
        self.relay = Relay(client.output, services.time, outbound.head, services.lines.cors_enabled, self._progressed)

    def _lines(self, ticket: Ticket | None) -> bytes:
        outbound = self._outbound
        lines = self._services.lines.of(outbound.head, outbound.id, ticket)
        for layer in outbound.layers:
            lines += layer.response_lines(ticket)
        return lines

    def _promise(self) -> bool:
        """Return whether the connection stays open: decided when the answer's head is written, and then final."""
        if self._promised is None:
            self._promised = self._outbound.head.keep_alive and self._client.may_go_on
        return self._promised

    # a worker's answer

    def open(self, attempt: Attempt, now_s: float) -> None:
        """Begin the response with the attempt's answer. Its later reads go directly to the relay."""
        connection, response, ticket = attempt.connection, attempt.response, attempt.ticket
        assert connection is not None and response is not None
        self._services.edges.opened(self._outbound, attempt, now_s)
        self._began = True
        if self._outbound.route.stores:
            response_id = stored_response_id(connection.pieces)
            if response_id is not None:
                self._services.pins.learn(response_id, ticket.candidate.id)
        self.answering = attempt
        self.relay.attach(connection, attempt.usage_frame)
        self.relay.open(response, attempt.pass_to(self.relay), self._lines(ticket), self._promise())
        # After the client has its first byte.
        self._outbound.body = b""  # no further attempt will need it
        self._client.body_done()
        self._services.log.first_event(self._outbound, now_s)

    def _progressed(self, gaps_s: Sequence[float], events: int) -> None:
        self._services.log.gaps(self._outbound, gaps_s)
        if self.answering is not None:
            tickets, ticket = self._services.placements.tickets, self.answering.ticket
            tickets.progress(ticket, events, gaps_s, self.relay.last_read_s)

    def worker_failed(self, kind: ErrorKind, message: str) -> Attempt | None:
        """Record that the worker failed the answer in progress. Return its attempt; None without such an answer."""
        attempt = self.answering
        if attempt is not None:
            attempt.failure = Failure(FailurePoint.STREAM, message)
            self.error = RequestError(kind, message)
        return attempt

    def finish(self, attempt: Attempt) -> None:
        """Release the attempt, whose answer is complete, with the usage it reported."""
        services, outbound = self._services, self._outbound
        now_s = services.time()
        if attempt.switched:
            services.edges.cancel(attempt, now_s)
            return
        usage = outbound.usage = self._usage(attempt)
        self._answered = usage if attempt.status < 400 else _NOTHING_USED
        self.answering = None
        plan = outbound.plan
        remote = plan is not None and plan.finished(attempt.ticket, usage)
        # The cached tokens that a worker reports after a transfer do not describe its own cache.
        services.edges.finish(outbound, attempt, Usage(None, usage.completion_tokens) if remote else usage, now_s)
        outbound.complete, outbound.output_tokens = True, attempt.ticket.output_tokens
        request = attempt.ticket.request
        if request.prompt is None or request.model is None or usage.prompt_tokens is None:
            return
        services.identity.observe_usage(request.model, request.prompt, usage.prompt_tokens)

    def finish_leg(self, attempt: Attempt) -> None:
        """Release a leg that is not the last, whose answer is complete."""
        plan = self._outbound.plan
        assert plan is not None
        plan.answered(attempt, self._services.time())

    def fail(self, attempt: Attempt) -> None:
        attempt.let_go(reusable=False)
        self.answering = None
        self._services.edges.fail(attempt, self._services.time())

    def cancel(self, attempt: Attempt) -> None:
        self.answering = None
        self._services.edges.cancel(attempt, self._services.time())

    def _usage(self, attempt: Attempt) -> Usage:
        """Return the usage that the complete answer reports, and tell the rewrites."""
        relay = self.relay
        if self.answering is None and attempt.connection is not None:
            relay.attach(attempt.connection, attempt.usage_frame)
        relay.flush()
        tail = relay.tail()
        usage = find_usage(tail)
        for rewrite in self._outbound.rewrites:
            rewrite.answered(attempt, tail, usage)
        return usage

    def complete(self, attempt: Attempt) -> None:
        relay = self.relay
        self._keep = relay.end_as_event() if relay.out is _COMMENTS else relay.end()
        attempt.let_go(reusable=True)

    def pass_error(self, attempt: Attempt) -> None:
        assert attempt.connection is not None and attempt.response is not None
        self._services.edges.fail(attempt, self._services.time())
        relay, lines = self.relay, self._lines(attempt.ticket)
        relay.attach(attempt.connection, attempt.usage_frame)
        if relay.out is not _COMMENTS:
            relay.open(attempt.response, attempt.pass_to(self.relay), lines, self._promise())

    def switch(self, attempt: Attempt) -> None:
        """Write the 101 response and connect both sides."""
        connection, response = attempt.connection, attempt.response
        assert connection is not None and response is not None
        relay, client = self.relay, self._client
        relay.status = 101
        self._began = True
        self.answering = attempt
        metered = self._meter if self._outbound.layers else None
        tunnel = self.tunnel = Tunnel(connection.write, client.output.write, self._services.time, metered)
        connection.tunnel = tunnel.from_worker
        connection.worker_writable = client.input.set_reading
        relay.attach(connection, None)
        relay.open(response, b"", self._lines(attempt.ticket), keep_alive=True)
        client.open_tunnel(tunnel)

    def _meter(self) -> None:
        """Tell the layers what the tunnel has carried. If one of them objects, the next sweep ends it."""
        tunnel, now_s = self.tunnel, self._services.time()
        for layer in self._outbound.layers:
            if tunnel is not None and layer.carried(tunnel.carried_bytes, now_s):
                self.overdrawn = True
                self._client.deadline_s = 0.0

    @property
    def last_read_s(self) -> float:
        """When the last byte of the answer, or of either side of the tunnel, arrived."""
        return self.relay.last_read_s if self.tunnel is None else self.tunnel.last_read_s

    def client_paced(self) -> None:
        """Restart the idle time of the worker: it could not send while the client did not read."""
        relay = self.relay
        now_s = relay.last_read_s = self._services.time()
        self._progress().seen(now_s, relay.events, relay.response_bytes - relay.own_bytes)

    def trickles(self, now_s: float, since_s: float) -> bool:
        """Return whether the worker has sent almost nothing for an idle limit. The stream began at `since_s`."""
        relay, idle_s = self.relay, self._services.timeouts.stream_idle_s
        relay.flush()
        read_bytes = relay.response_bytes - relay.own_bytes
        stalled = self._progress().stalled(now_s, since_s, idle_s, relay.events, read_bytes)
        return stalled and self._client.writable

    def _progress(self) -> Trickle:
        if self._trickle is None:
            self._trickle = Trickle()
        return self._trickle

    # without a worker's answer

    def comment(self) -> None:
        """Write an SSE comment, between two events; before the first one, write a stream's head."""
        self.relay.comment(self._lines(None), not self._promise())

    def reply(self, _: object = None) -> None:
        """Answer with `error`. No part of a worker's answer has gone to the client."""
        error = self.error
        assert error is not None
        relay, head, spec = self.relay, self._outbound.head, error.kind.spec
        if relay.out is _COMMENTS:
            self._services.log.error(self._outbound, spec.code, "before_first")
            self._keep = relay.break_off(error.kind, error.message)
            return
        self._services.log.error(
            self._outbound, spec.code, "request" if self._outbound.request is None else "before_first"
        )
        lines = self._lines(None) + retry_after(error) + connection_line(head, close=not self._promise())
        reply = own_reply(spec.status, error_body(error, head.path), lines, without_body=head.method == "HEAD")
        relay.status = spec.status
        relay.response_bytes += len(reply)
        self._client.output.write(reply)
        self._keep = True

    def break_off(self, _: object = None) -> None:
        """End a begun answer with `error`: as an event of the stream if possible, otherwise by truncation."""
        relay, error = self.relay, self.error
        assert error is not None
        if relay.out is ResponseProgress.NOTHING:  # a defect came before the head was written
            self.reply()
            return
        relay.flush()
        self._services.log.error(self._outbound, error.kind.spec.code, "stream")
        self._keep = relay.break_off(error.kind, error.message)

    def abort_client(self, _: object = None) -> None:
        """Close the client's connection at once."""
        self._client.abort()

    def close(self) -> None:
        """Write the log, and let the client send its next request."""
        relay, error, status, now_s = self.relay, self.error, self._status(), self._services.time()
        left_in = None if self.left_in is None else self.left_in.name.lower()
        code = None if error is None else error.kind.spec.code
        if self._outbound.layers:
            self._end_layers(status, now_s, code)
        counts = relay.response_bytes, relay.events
        self._services.log.close(self._outbound, status, now_s, *counts, left_in, code)
        self.answering = self.error = None  # an error's traceback holds this object, and so the body
        relay.close()
        if self.left_in is None:
            self._client.request_ended(self._keep and self._promise())

    def _end_layers(self, status: int, now_s: float, code: str | None) -> None:
        outbound, tunnel, answered, left = self._outbound, self.tunnel, self._answered, self.left_in is not None
        end = RequestEnd(
            status,
            now_s,
            now_s - outbound.arrived_s,
            outbound.ttft_s,
            outbound.usage,
            code,
            outbound.ticket,
            answered,
            self.relay.text_bytes if tunnel is None else tunnel.carried_bytes,
            served=self._began or answered is not None or (left and outbound.ticket is not None),
            left=left,
            tunnel=tunnel is not None,
        )
        for layer in outbound.layers:
            layer.ended(end)

    def _status(self) -> int:
        """Return the status for log and metrics. A client ends a tunnel by leaving."""
        if self.left_in is None or self.tunnel is not None:
            return self.relay.status
        return CLIENT_LEFT


RESPONSE_STEPS: Final[dict[Effect, Callable[[Responder, Any], None]]] = {
    Effect.FAIL: Responder.fail,
    Effect.FINISH: Responder.finish,
    Effect.FINISH_LEG: Responder.finish_leg,
    Effect.COMPLETE: Responder.complete,
    Effect.PASS_ERROR: Responder.pass_error,
    Effect.REPLY: Responder.reply,
    Effect.BREAK_OFF: Responder.break_off,
    Effect.ABORT_CLIENT: Responder.abort_client,
}
"""The effects that concern the response alone."""

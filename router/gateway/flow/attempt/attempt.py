"""One attempt at a request: connect to its worker, send the request, and classify the start of the answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from backends.vllm.handover.prefill_answer import answer_limit_bytes
from router.gateway.flow.attempt.opening import Opening, Verdict
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.flow.outcomes import Failure, Outcome, denies_model, seconds, shuts_down
from router.gateway.http.upstream.answer_end import ANSWER_ENDS, REASONS, AnswerFault
from router.gateway.http.upstream.connection import UpstreamConnection
from router.gateway.http.upstream.headers import request_to_worker
from router.gateway.http.upstream.pool import ConnectionPool
from router.gateway.http.upstream.response_head import ResponseHead
from router.gateway.http.upstream.worker_keys import WorkerKeys
from router.gateway.last_look import LastLook
from router.gateway.rewrites.usage_frame import UsageFrame
from router.metrics.instruments import Counter
from router.placement.fleet.rank_numbers import RankForm
from router.placement.request import FailurePoint
from router.placement.tickets import Ticket

# Server errors about the request, not about the worker: another worker would answer the same.
_NOT_A_FAILURE = frozenset({501, 505})
_BAD_REQUEST = frozenset({400, 422})
NOT_FOUND_BYTES = 4_096
"""A 404 whose body is longer, framing included, is passed on unread."""

ERROR_BYTES = 65_536
"""A server error whose body is longer, framing included, is not passed on."""
ERROR_BODY_S = 1.0
"""How long the gateway waits for the body of a server error."""
PREAMBLE_S = 0.02
"""How long events without content are kept back. vLLM sends the first content directly after them."""
BODY_S = 1.0
"""How long a body that is no stream is kept back until it is whole."""
STALE_S = 0.01
"""If a pooled connection breaks within this time after a request was written, the worker had closed it before."""

# Module constants, because looking up a member of an enum is slow.
_OPEN: Final = Verdict.OPEN
_OPENED: Final = Outcome.OPENED
_ANSWERED: Final = Outcome.ANSWERED
_NO_FAULT: Final = AnswerFault.NONE


@dataclass(frozen=True, slots=True)
class AttemptServices:
    """The way to the workers, which all attempts of a gateway share.

    `scheme` is that of the clients' URLs, and `via` the gateway's line in each request.
    """

    loop: asyncio.AbstractEventLoop
    time: Callable[[], float]
    redials: Counter
    pools: ConnectionPool
    worker_keys: WorkerKeys | None
    scheme: bytes
    via: bytes


class Attempt:
    """One try of a request at the worker of `ticket`.

    `report` gets each outcome together with the attempt. The last outcome is ANSWERED, NOT_FOUND, ERRED, FAILED or
    CRASHED. After NOT_FOUND, ERRED and FAILED, `failure` gives the reason why another worker should take over.
    """

    __slots__ = (
        "_collects", "_dial", "_doubts_refusals", "_end", "_hold", "_late", "_opened", "_other_forms", "_outbound",
        "_paused", "_rank_form", "_report", "_sent_s", "_services", "connected_s", "connection", "failure", "given_up",
        "limit_s", "lost", "opening", "recent", "response", "response_read", "sent", "since_s", "switched", "ticket",
        "usage_frame", "worker_writable",
    )  # fmt: skip

    def __init__(
        self,
        services: AttemptServices,
        outbound: OutboundRequest,
        ticket: Ticket,
        report: Callable[[Outcome, Attempt], None],
        *,
        commented: bool,
        paused: bool,
        collects: bool = False,
        limit_s: float = math.inf,
        doubts_refusals: bool = False,
    ) -> None:
        """With `collects` the answer is kept whole and never opens. `limit_s` limits the time until its first event.

        With `doubts_refusals` a 4xx is a failure: the gateway's own additions to the request may be its cause.
        """
        self._services = services
        self._outbound = outbound
        self._report = report
        self._dial: asyncio.Task[None] | None = None
        self._late: asyncio.TimerHandle | LastLook | None = None
        """Runs while the body of a server error is read."""
        self._hold: asyncio.TimerHandle | None = None
        """Runs while the beginning of an answer is kept back, to be judged with what follows."""
        self._end = ANSWER_ENDS.get(outbound.route.pattern)
        """How complete answers end; None if that is not known."""
        self._sent_s: float | None = None
        """When the request was last written."""
        self._opened = False
        self._paused = paused
        """The sum of earlier pauses."""
        self._collects = collects
        self._doubts_refusals = doubts_refusals
        self._rank_form = ticket.candidate.endpoint.ranks.form
        self._other_forms: Iterator[RankForm] | None = None
        """The forms of the rank that are left to try; None before the first refusal."""
        self.limit_s = limit_s
        self.given_up = False
        """The gateway broke the attempt off before its first event."""
        self.ticket = ticket
        self.opening = Opening(commented, judged=self._end is not None and not collects)
        self.connection: UpstreamConnection | None = None
        self.connected_s = 0.0
        """When the connection that the request was written to was made."""
        self.response: ResponseHead | None = None
        self.response_read: Callable[[bytes], None] = _ignore
        self.recent: Callable[[], bytes] = _nothing
        """Returns the last bytes of the answer, without framing, those of the present read included."""
        self.usage_frame: UsageFrame | None = None
        """Removes the usage frame from a stream whose client did not ask for usage, or rewrites the usage."""
        self.failure: Failure | None = None
        self.lost = False
        """The connection broke; False if the worker answered with a server error."""
        self.sent = False
        """The request was written to a connection; False while the connection is being made."""
        self.since_s = 0.0
        """When `sent` was last set."""
        self.switched = False
        self.worker_writable: Callable[[bool], None] = _ignore_pause
        """Called with False when the worker stops reading. Only a tunnel can write faster than its worker reads."""

    @property
    def unopened(self) -> bool:
        return not self._opened

    @property
    def begins_early(self) -> bool:
        """Whether a worker that works begins its answer long before the end: a stream, or a protocol switch.

        An answer in one piece has no early byte, so its silence says nothing about the worker.
        """
        response = self.response
        return self.ticket.request.stream or self._outbound.upgrade or (response is not None and response.events)

    @property
    def status(self) -> int:
        """The answer's status; that of its first event if that event is an error about the request."""
        assert self.response is not None
        return self.opening.refused or self.response.status

    # sending

    def begin(self, *, fresh: bool = False) -> None:
        """Send the request to the ticket's worker. Use an idle connection if there is one, unless `fresh` is set."""
        services = self._services
        endpoint = self.ticket.candidate.endpoint.endpoint
        connection = None if fresh or self._outbound.upgrade else services.pools.take(endpoint)
        if connection is not None:
            self._send(connection)
            return
        self.sent = False
        self.since_s = services.time()
        self._dial = services.pools.dial(endpoint, self)

    def dialled(self, connection: UpstreamConnection) -> None:
        self._dial = None
        self._send(connection)
        self._report(Outcome.MOVED, self)

    def dial_failed(self, reason: str, *, own_shortage: bool) -> None:
        """Fail: the worker cannot be reached. `own_shortage`: the gateway itself cannot open a connection."""
        self._dial = None
        if own_shortage:
            self._fail(FailurePoint.LOCAL, reason)
        elif self._sent_s is not None:
            # The pooled connection had not closed while idle: the worker is gone, and it had received the request.
            self._suspect(lost=True)
            self._fail(FailurePoint.SENT, f"connection closed by the worker, then: {reason}")
        else:
            self._fail(FailurePoint.CONNECT, f"cannot connect: {reason}")

    def _send(self, connection: UpstreamConnection) -> None:
        services, outbound, candidate = self._services, self._outbound, self.ticket.candidate
        self.connection = connection
        self.response = None
        self.response_read = self._collect if self._collects else self._read_before_first
        self.recent = self._unread
        now_s = services.time()
        outgoing = outbound.outgoing(self.ticket, now_s)
        body, usage_frame = outgoing.body, outgoing.usage_frame
        self.usage_frame = usage_frame
        keys = services.worker_keys
        head = request_to_worker(
            outgoing.head,
            len(body),
            candidate.endpoint.endpoint,
            outbound.id_for(self.ticket),
            candidate.endpoint.ranks.sent(candidate.rank, self._rank_form),
            outbound.peer.encode("ascii"),
            outbound.upgrade,
            plain=usage_frame is not None or self._collects,
            authorization=keys.line(candidate.endpoint.id) if keys is not None else None,
            scheme=services.scheme,
            worker=candidate.id,
            withheld=outbound.withheld,
            via=services.via,
        )
        plan = outbound.plan
        if plan is not None:
            limit_s = plan.sent_limit_s(self.ticket, now_s)
            if limit_s is not None:
                self.limit_s = limit_s
            if line := plan.worker_line(self.ticket):
                head = b"%b%b\r\n%b" % (head[:-2], line, head[-2:])
        for layer in outbound.layers:
            head = head[:-2] + layer.worker_lines(self) + head[-2:]
        connection.send(self, head, body, outbound.head.method == "HEAD")
        self.sent = True
        self._sent_s = self.since_s = now_s
        self.connected_s = connection.connected_s
        if self._paused:
            connection.pause_reading()

    # the worker's answer

    def response_began(self, response: ResponseHead) -> None:
        self.response = response
        status = response.status
        if status < 400 and not self.ticket.candidate.endpoint.ranks.settled:
            self.ticket.candidate.endpoint.ranks.accepted(self.ticket.candidate.rank, self._rank_form)
        if response.events and not self.ticket.request.stream:
            self._report(Outcome.MOVED, self)  # a stream that the request did not show: it should begin early
        if status == 503:
            self.let_go(reusable=True)
            self._fail(FailurePoint.REFUSED, f"HTTP {status}", seconds(response.fields.get(b"retry-after")))
        elif status >= 500 and status not in _NOT_A_FAILURE:
            if response.until_close:
                self._error_cut()
            else:
                self.response_read = self._read_error
                self._late = self._services.loop.call_later(ERROR_BODY_S, self._error_due)
        elif 400 <= status < 500 and self._doubts_refusals:
            self._refused(status)
        elif status in _BAD_REQUEST and self._send_with_other_rank():
            pass
        elif status in _BAD_REQUEST and self.usage_frame is not None and self.usage_frame.asked_for:
            self._send_unasked()
        elif status == 404:
            if self.ticket.request.model is not None and not response.events:
                self.response_read = self._read_not_found
        elif status == 101:
            if self._outbound.upgrade:
                self._opened = self.switched = True
                self._report(Outcome.SWITCHED, self)
            else:
                self.worker_lost("unexpected 101", True)

    def _send_with_other_rank(self) -> bool:
        """Send the request again with its rank in another form, or without one: it may be what the worker refuses.

        Return False if no form is left to try; a further attempt would use the first one.
        """
        candidate = self.ticket.candidate
        if candidate.rank is None:
            return False
        if self._other_forms is None:
            self._other_forms = candidate.endpoint.ranks.other_forms()
        form = next(self._other_forms, None)
        self._rank_form = form or candidate.endpoint.ranks.form
        if form is None:
            return False
        self.let_go(reusable=True)
        self.begin()
        self._report(Outcome.MOVED, self)
        return True

    def _send_unasked(self) -> None:
        """Send the request again without the question for usage: it may be what the worker, an old vLLM, refuses."""
        if self._outbound.rewrites is not None:
            self._outbound.rewrites.unask(self.ticket.candidate.endpoint)
        self.let_go(reusable=True)
        self.begin()
        self._report(Outcome.MOVED, self)

    def _read_before_first(self, data: bytes) -> None:
        assert self.response is not None and self.connection is not None
        verdict = self.opening.feed(data, self.connection, self.response)
        if verdict is _OPEN and self._doubts_refusals and self.opening.refused:
            self._refused(self.opening.refused)
        elif verdict is _OPEN:
            self._open()
        elif verdict is Verdict.PREAMBLE:
            self._hold_back(PREAMBLE_S)
        elif verdict is Verdict.PART:
            self._hold_back(BODY_S)
        elif verdict is Verdict.ERROR:
            self._stream_error()
        elif verdict is Verdict.TOO_LONG:
            self.worker_lost("no event among too many bytes", True)

    def _open(self) -> None:
        self._release_hold()
        self._opened = True
        self._report(_OPENED, self)

    def _hold_back(self, for_s: float) -> None:
        """Open the answer after `for_s`, unless it is judged before."""
        if self._hold is None:
            self._hold = self._services.loop.call_later(for_s, self._held_long_enough)

    def _held_long_enough(self) -> None:
        self._hold = None
        try:
            self._open()
        except Exception:
            self.crashed()

    def _release_hold(self) -> None:
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.cancel()

    def _refused(self, status: int) -> None:
        """Fail, because the worker finds a mistake in a request that the gateway has added to."""
        self.let_go(reusable=False)
        self._fail(FailurePoint.ANSWERED, f"HTTP {status}")

    def _collect(self, data: bytes) -> None:
        """Take body bytes of an answer that is not for the client; the connection keeps their content."""
        assert self.connection is not None
        if self.connection.raw_bytes > answer_limit_bytes(self._outbound.size_bytes):
            self.worker_lost("the prefill's answer is too long", True)

    @property
    def content(self) -> bytes:
        return b"" if self.connection is None else b"".join(self.connection.pieces)

    def _stream_error(self) -> None:
        error = self.opening.error
        assert error is not None
        self.let_go(reusable=False)
        point = FailurePoint.REFUSED if error.status == 503 else FailurePoint.ANSWERED
        if point is FailurePoint.ANSWERED:
            self._suspect(lost=False)
        # Without the worker's message: it may repeat the prompt, and reasons are logged and kept.
        self._fail(point, f"error as first event, status {error.status or 'not given'}")

    def _read_not_found(self, data: bytes) -> None:
        """Take body bytes of a 404. A short one is classified when it is complete; a long one is passed on."""
        assert self.response is not None and self.connection is not None
        if self.connection.raw_bytes > NOT_FOUND_BYTES:
            self.response_read = self._read_before_first
            self._read_before_first(data)
        else:
            self.opening.feed(data, self.connection, self.response)

    def _read_error(self, data: bytes) -> None:
        """Take body bytes of a server error, which is passed on if no other worker is tried."""
        assert self.response is not None and self.connection is not None
        if self.connection.raw_bytes > ERROR_BYTES:
            self._error_cut()
        else:
            self.opening.feed(data, self.connection, self.response)

    def _error_due(self) -> None:
        self._late = LastLook(self._services.loop, self._error_cut)

    def _error_cut(self) -> None:
        """Fail with a server error whose body is late, too long or has no defined end."""
        response = self.response
        self.let_go(reusable=True)
        try:
            self._suspect(lost=False)
            self._fail(FailurePoint.ANSWERED, f"HTTP {response.status if response is not None else 0}")
        except Exception:
            self.crashed()

    def _denies_model(self) -> bool:
        """Return whether a complete 404 says that the worker does not serve a model that it has listed."""
        connection = self.connection
        if self.ticket.request.model is None or connection is None or connection.raw_bytes > NOT_FOUND_BYTES:
            return False
        return self.ticket.candidate.endpoint.models_known and denies_model(b"".join(connection.pieces))

    def _unread(self) -> bytes:
        connection = self.connection
        return b"" if connection is None else b"".join(connection.pieces)

    def judge(self, data: bytes) -> AnswerFault:
        """Return the fault of an answer as far as it has come, with the read `data`. Few reads are looked at."""
        end, response, connection = self._end, self.response, self.connection
        if end is None or response is None or connection is None or response.status != 200:
            return _NO_FAULT
        complete = connection.complete
        if not response.events:
            whole = complete and (not self._opened or not response.until_close)
            return end.of_body(self.recent()) if whole else _NO_FAULT
        ended = complete and response.length is None
        return end.of_stream(self.recent(), ended) if ended or end.suspects(data) else _NO_FAULT

    def answer_broken(self, fault: AnswerFault) -> None:
        """Fail: the worker has aborted the request, or its stream has no end."""
        if fault is AnswerFault.CUT or self._opened:
            self.worker_lost(REASONS[fault], False)
        else:
            self.let_go(reusable=False)
            self._fail(FailurePoint.ANSWERED, REASONS[fault])

    def response_ended(self) -> None:
        response = self.response
        assert response is not None
        if self._opened:
            self._report(_ANSWERED, self)
        elif self._late is not None:
            self._server_error(response)
        elif response.events and response.status == 200 and not response.bodiless and self._hold is None:
            self.worker_lost("the stream ended without an event", False)
        elif response.status == 404 and self._denies_model():
            self.failure = Failure(FailurePoint.UNSERVED, "HTTP 404: it does not serve the model")
            self._report(Outcome.NOT_FOUND, self)
        else:
            self._report(_ANSWERED, self)

    def _server_error(self, response: ResponseHead) -> None:
        if self._late is not None:
            self._late.cancel()
        if response.status == 500 and shuts_down(self.content):
            self.let_go(reusable=True)
            self._fail(FailurePoint.STOPPING, "HTTP 500: it shuts down")
            return
        self._suspect(lost=False)
        self.failure = Failure(FailurePoint.ANSWERED, f"HTTP {response.status}")
        self._report(Outcome.ERRED, self)

    def worker_lost(self, reason: str, broke_http: bool) -> None:
        """Redial or fail, because this connection will not bring the rest of the answer."""
        connection = self.connection
        erred = self.response if self._late is not None else None
        stale = connection is not None and connection.reused and connection.silent and not broke_http
        self.let_go(reusable=False)
        if self._opened:
            self._fail(FailurePoint.STREAM, reason, broke_http=broke_http)
        elif erred is not None:
            self._suspect(lost=False)
            self._fail(FailurePoint.ANSWERED, f"HTTP {erred.status}")
        elif stale:
            # The worker closed the idle connection. That is no sign of a failure, so it does not count as an attempt.
            if self._sent_s is not None and self._services.time() - self._sent_s > STALE_S:
                self._suspect(lost=True)
            self._services.redials.add()
            self.begin(fresh=True)
            self._report(Outcome.MOVED, self)
        else:
            if not broke_http and connection is not None and not connection.complete:
                self._suspect(lost=True)
            self._fail(FailurePoint.SENT, reason)

    def crashed(self) -> None:
        """Report a defect; call from an `except` block."""
        self._report(Outcome.CRASHED, self)

    def _suspect(self, *, lost: bool) -> None:
        """Report that the request may have crashed the worker.

        `lost`: the connection broke; otherwise the worker answered with a server error.
        """
        self.lost = lost
        self._report(Outcome.SUSPECTED, self)

    def _fail(
        self, point: FailurePoint, reason: str, retry_after_s: float | None = None, *, broke_http: bool = False
    ) -> None:
        self.failure = Failure(point, reason, retry_after_s, broke_http)
        self._report(Outcome.FAILED, self)

    # calls from the request

    @property
    def point_if_given_up(self) -> FailurePoint:
        return FailurePoint.SENT if self.sent else FailurePoint.CONNECT

    def comment(self) -> None:
        self.opening.comment()

    def give_up(self, reason: str, *, late: bool = False) -> None:
        """Fail before the first event, because the worker was lost, or its answer is `late`."""
        point = FailurePoint.LATE if late and self.sent else self.point_if_given_up
        self.given_up = True
        self.let_go(reusable=False)
        self._fail(point, reason)

    def pause(self, paused: bool) -> None:
        """Stop reading the answer while the client does not read, or resume."""
        self._paused = paused
        connection = self.connection
        if connection is not None:
            if paused:
                connection.pause_reading()
            else:
                connection.resume_reading()

    def let_go(self, *, reusable: bool) -> None:
        """Stop dialling, or release the connection. A connection that is not `reusable` is closed."""
        late, self._late = self._late, None
        if late is not None:
            late.cancel()
        self._release_hold()
        dial, self._dial = self._dial, None
        if dial is not None:
            dial.cancel()
        connection, self.connection = self.connection, None
        self.response_read = _ignore  # breaks reference cycles, so that no garbage collection is needed
        self.recent = _nothing
        if connection is not None:
            if self._paused:
                connection.resume_reading()
            connection.release(reusable)


def _nothing() -> bytes:
    return b""


def _ignore(data: bytes) -> None: ...


def _ignore_pause(writable: bool) -> None:
    """Ignore back-pressure: a request is written once, so there is nothing to pause."""

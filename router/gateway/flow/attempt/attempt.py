"""One attempt at a request: connect to its worker, send the request, and classify the start of the answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Protocol

from backends.vllm.handover.prefill_answer import answer_limit_bytes
from router.gateway.flow.answer.relay import Relay
from router.gateway.flow.attempt.opening import Opening
from router.gateway.flow.attempt.transitions import ATTEMPT_TRANSITIONS, AttemptState, Release
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.flow.outcomes import AttemptEvent, Failure, Outcome, denies_model, seconds, shuts_down
from router.gateway.http.upstream.answer_end import ANSWER_ENDS, REASONS, AnswerFault
from router.gateway.http.upstream.connection import UpstreamConnection
from router.gateway.http.upstream.pool import ConnectionPool
from router.gateway.http.upstream.response_head import ResponseHead
from router.gateway.last_look import LastLook
from router.placement.fleet.rank_numbers import RankForm
from router.placement.tickets import Ticket
from router.requests.outgoing import AnswerFilter

# Server errors about the request, not about the worker: another worker would answer the same.
_NOT_A_FAILURE = frozenset({501, 505})
_BAD_REQUEST = frozenset({400, 422})
ERROR_BODY_S = 1.0
"""How long the gateway waits for the body of a server error."""
PREAMBLE_S = 0.02
"""How long events without content are kept back. vLLM sends the first content directly after them."""
BODY_S = 1.0
"""How long a body that is no stream is kept back until it is whole."""
STALE_S = 0.01
"""If a pooled connection breaks within this time after a request was written, the worker had closed it before."""


class AttemptInbox(Protocol):
    """Takes what the attempts of one request tell it."""

    def post(self, outcome: Outcome, attempt: Attempt) -> None: ...


class Attempt:
    """One try of a request at the worker of `ticket`.

    Each call becomes an event of `transitions`, whose outcomes go to the `inbox` as its last act. The last outcome is
    ANSWERED, NOT_FOUND, ERRED, FAILED or CRASHED. After NOT_FOUND, ERRED and FAILED, `failure` gives the reason why
    another worker should take over.
    """

    __slots__ = (
        "_collects",
        "_dial",
        "_end",
        "_inbox",
        "_opening",
        "_other_forms",
        "_outbound",
        "_paused",
        "_pools",
        "_rank_form",
        "_relay",
        "_timer",
        "answer_filter",
        "connected_s",
        "connection",
        "failure",
        "limit_s",
        "refused",
        "response",
        "since_s",
        "state",
        "ticket",
    )  # fmt: skip

    def __init__(
        self,
        pools: ConnectionPool,
        outbound: OutboundRequest,
        ticket: Ticket,
        inbox: AttemptInbox,
        *,
        commented: bool,
        paused: bool,
        collects: bool = False,
        limit_s: float = math.inf,
    ) -> None:
        """With `collects` the answer is kept whole and never opens. `limit_s` limits the time until its first event.

        `commented`: the client has comments of the gateway. `paused`: it does not read.
        """
        self._pools = pools
        self._outbound = outbound
        self._inbox = inbox
        self.state = AttemptState.DIALLING
        self._dial: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | LastLook | None = None
        """Ends the states HELD and ERROR_BODY."""
        self._end = ANSWER_ENDS.get(outbound.route.pattern)
        """How complete answers end; None if that is not known."""
        self._paused = paused
        self._collects = collects
        self._rank_form = ticket.candidate.endpoint.ranks.form
        self._other_forms: Iterator[RankForm] | None = None
        """The forms of the rank that are left to try; None before the first refusal."""
        limit_bytes = answer_limit_bytes(outbound.size_bytes) if collects else 0
        self._opening: Opening | None = Opening(commented, self._end is not None, limit_bytes)
        """The answer until its first event is passed on."""
        self._relay: Relay | None = None
        """Takes the answer from then on."""
        self.limit_s = limit_s
        self.ticket = ticket
        self.connection: UpstreamConnection | None = None
        self.connected_s = 0.0
        """When the connection was made that the request was last written to; 0.0 before it was written."""
        self.response: ResponseHead | None = None
        self.refused = 0
        """The 4xx status of a stream whose first event is an error about the request; otherwise 0."""
        self.answer_filter: AnswerFilter | None = None
        """Removes the usage frame from a stream whose client did not ask for usage, or rewrites the usage."""
        self.failure: Failure | None = None
        self.since_s = 0.0
        """When the request was last written, or the dial of a connection for it last began."""

    @property
    def sent(self) -> bool:
        """Whether the request was written to a connection. False while the connection is being made."""
        return self.state >= AttemptState.SENT

    @property
    def unopened(self) -> bool:
        return self.state < AttemptState.OPEN

    @property
    def unanswered(self) -> bool:
        """Whether no byte of an answer has come, be it unread."""
        connection = self.connection
        quiet = connection is None or (connection.silent and not connection.has_unread)
        return self.state <= AttemptState.SENT and self.response is None and quiet

    @property
    def switched(self) -> bool:
        return self.response is not None and self.response.status == 101

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
        return self.refused or self.response.status

    @property
    def content(self) -> bytes:
        """What the connection keeps of the answer, without framing."""
        return b"" if self.connection is None else b"".join(self.connection.pieces)

    @property
    def depends(self) -> bool:
        """Whether the attempt gets another worker's KV cache, by additions of the gateway to the request."""
        plan = self._outbound.plan
        return plan is not None and plan.depends_at(self.ticket)

    # events

    def _take(self, event: AttemptEvent, reason: str = "", retry_after_s: float | None = None) -> None:
        """Take the event's transition, and post its outcomes. Nothing of the attempt may follow this call.

        Without a `reason` a failure has the answer's status.
        """
        row = ATTEMPT_TRANSITIONS.get((self.state, event))
        if row is None:
            return
        to, release, point, outcomes = row
        if self._timer is not None and to is not self.state:
            self._timer.cancel()
            self._timer = None
        self.state = to
        if release is not Release.KEEP:
            self._free(reusable=release is Release.REUSE)
        if point is not None:
            why = reason or f"HTTP {self.response.status if self.response is not None else 0}"
            self.failure = Failure(point, why, retry_after_s, event)
        for outcome in outcomes:
            self._inbox.post(outcome, self)

    # sending

    def begin(self, *, fresh: bool = False) -> None:
        """Send the request to the ticket's worker. Use an idle connection if there is one, unless `fresh` is set."""
        pools, endpoint = self._pools, self.ticket.candidate.endpoint.endpoint
        connection = None if fresh or self._outbound.upgrade else pools.take(endpoint)
        if connection is not None:
            self._send(connection)
            return
        self.since_s = pools.loop.time()
        self._dial = pools.dial(endpoint, self)

    def _begin_again(self, event: AttemptEvent, *, fresh: bool = False) -> None:
        self._take(event)
        self.begin(fresh=fresh)
        self._inbox.post(Outcome.MOVED, self)

    def dialled(self, connection: UpstreamConnection) -> None:
        self._dial = None
        self._send(connection)
        self._inbox.post(Outcome.MOVED, self)

    def dial_failed(self, reason: str, *, own_shortage: bool) -> None:
        """Fail: the worker cannot be reached. `own_shortage`: the gateway itself cannot open a connection."""
        self._dial = None
        if own_shortage:
            self._take(AttemptEvent.NO_DIAL, reason)
        elif self.connected_s:
            # The pooled connection had not closed while idle: the worker is gone, and it had received the request.
            self._take(AttemptEvent.UNREACHABLE_AGAIN, f"connection closed by the worker, then: {reason}")
        else:
            self._take(AttemptEvent.UNREACHABLE, f"cannot connect: {reason}")

    def _send(self, connection: UpstreamConnection) -> None:
        pools, outbound, candidate = self._pools, self._outbound, self.ticket.candidate
        self.connection = connection
        self.response = None
        now_s = pools.loop.time()
        rank = candidate.endpoint.ranks.sent(candidate.rank, self._rank_form)
        head, body, self.answer_filter = outbound.written(self.ticket, now_s, rank, pools, plain=self._collects)
        plan = outbound.plan
        limit_s = None if plan is None else plan.sent_limit_s(self.ticket, now_s)
        if limit_s is not None:
            self.limit_s = limit_s
        for layer in outbound.layers:
            head = head[:-2] + layer.worker_lines(self) + head[-2:]
        connection.send(self, head, body, outbound.head.method == "HEAD")
        self.since_s = now_s
        self.connected_s = connection.connected_s
        if self._paused:
            connection.set_reading(False)
        self._take(AttemptEvent.SEND)

    # the worker's answer

    def response_began(self, response: ResponseHead) -> None:
        self.response = response
        ranks = self.ticket.candidate.endpoint.ranks
        if response.status < 400 and not ranks.settled:
            ranks.accepted(self.ticket.candidate.rank, self._rank_form)
        if response.events and not self.ticket.request.stream:
            self._inbox.post(Outcome.MOVED, self)  # a stream that the request did not show: it should begin early
        status = response.status
        if status == 503:
            self._take(AttemptEvent.REFUSED, "", seconds(response.fields.get(b"retry-after")))
        elif status >= 500 and status not in _NOT_A_FAILURE:
            if response.until_close:
                self._take(AttemptEvent.ERROR_CUT)
            else:
                self._take(AttemptEvent.SERVER_ERROR)
                self._timer = self._pools.loop.call_later(ERROR_BODY_S, self._due)
        elif status >= 400 and self.depends and status < 500:
            self._take(AttemptEvent.DOUBTED)
        elif status in _BAD_REQUEST and self._takes_back():
            self._begin_again(AttemptEvent.AGAIN)
        elif status == 404 and self.ticket.request.model is not None and not response.events:
            self._take(AttemptEvent.MISSING)
        elif status == 101 and self._outbound.upgrade:
            self._take(AttemptEvent.SWITCH)
        elif status == 101:
            self._take(AttemptEvent.INVALID, "unexpected 101")

    def _takes_back(self) -> bool:
        """Take an addition of the gateway back, which may be what the worker refuses. Return False if none is left.

        The rank may be given in another form, or not at all; a further attempt would use the first form. An old vLLM
        refuses the question for usage.
        """
        candidate = self.ticket.candidate
        if candidate.rank is not None:
            if self._other_forms is None:
                self._other_forms = candidate.endpoint.ranks.other_forms()
            form = next(self._other_forms, None)
            self._rank_form = form or candidate.endpoint.ranks.form
            if form is not None:
                return True
        return any(rewrite.takes_back(self) for rewrite in self._outbound.rewrites)

    def response_read(self, data: bytes) -> None:
        opening, connection, response = self._opening, self.connection, self.response
        if opening is None:
            if self._relay is not None:
                self._relay.read(data)
            return
        assert connection is not None and response is not None
        event = opening.feed(self.state, data, connection, response)
        if event is AttemptEvent.OPEN:
            self.refused = opening.refused
            if opening.refused and self.depends:
                event = AttemptEvent.DOUBTED
        elif event is AttemptEvent.PREAMBLE or event is AttemptEvent.PART:
            self._take(event)
            if self._timer is None and self.state is AttemptState.HELD:
                hold_s = PREAMBLE_S if event is AttemptEvent.PREAMBLE else BODY_S
                self._timer = self._pools.loop.call_later(hold_s, self._due)
            return
        self._take(event, opening.reason)

    def _due(self) -> None:
        """End a state that has lasted long enough. Errors that have arrived by then count."""
        try:
            if self.state is AttemptState.HELD:
                self._take(AttemptEvent.OPEN)
            elif isinstance(self._timer, LastLook):
                self._take(AttemptEvent.ERROR_CUT)
            else:
                self._timer = LastLook(self._pools.loop, self._due)
        except Exception:
            self.crashed()

    def pass_to(self, relay: Relay) -> bytes:
        """Let `relay` have the rest of the answer. Return what was kept back, framed; empty after comments."""
        self._relay = relay
        opening, self._opening = self._opening, None
        return b"" if opening is None else opening.take()

    def judge(self, data: bytes) -> AnswerFault:
        """Return the fault of an answer as far as it has come, with the read `data`. Few reads are looked at."""
        end, response, connection = self._end, self.response, self.connection
        if end is None or response is None or connection is None or response.status != 200:
            return AnswerFault.NONE
        return end.judge(
            data, self._recent, response, complete=connection.complete, begun=self.state >= AttemptState.OPEN
        )

    def _recent(self) -> bytes:
        return self.content if self._relay is None else self._relay.recent()

    def answer_broken(self, fault: AnswerFault) -> None:
        """Fail: the worker has aborted the request, or its stream has no end."""
        cut = AttemptEvent.INVALID if fault is AnswerFault.CUT else AttemptEvent.ABORTED
        self._take(AttemptEvent.LOST if self.state is AttemptState.OPEN else cut, REASONS[fault])

    def response_ended(self) -> None:
        response, state = self.response, self.state
        assert response is not None
        if state is AttemptState.OPEN and self.answer_filter is not None and self.answer_filter.broken:
            self._take(AttemptEvent.LOST, REASONS[AnswerFault.USELESS])
        elif state is AttemptState.ERROR_BODY and response.status == 500 and shuts_down(self.content):
            self._take(AttemptEvent.STOPPING, "HTTP 500: it shuts down")
        elif state is AttemptState.SENT and response.events and response.status == 200 and not response.bodiless:
            self._take(AttemptEvent.INVALID, "the stream ended without an event")
        elif (
            state is AttemptState.NOT_FOUND
            and self.ticket.candidate.endpoint.models_known
            and denies_model(self.content)
        ):
            self._take(AttemptEvent.NO_MODEL, "HTTP 404: it does not serve the model")
        else:
            self._take(AttemptEvent.END)

    def worker_lost(self, reason: str, broke_http: bool) -> None:
        """Redial or fail, because this connection will not bring the rest of the answer."""
        connection = self.connection
        if self.state is AttemptState.ERROR_BODY:
            reason = ""
        if broke_http or connection is None:
            self._take(AttemptEvent.INVALID, reason)
        elif connection.reused and connection.silent and self.state is AttemptState.SENT:
            # The worker closed the idle connection. That is no sign of a failure, so it does not count as an attempt.
            late = self._pools.loop.time() - self.since_s > STALE_S
            self._pools.redials.add()
            self._begin_again(AttemptEvent.STALE_LATE if late else AttemptEvent.STALE, fresh=True)
        elif self.state is AttemptState.OPEN and self.answer_filter is not None and self.answer_filter.whole:
            self._take(AttemptEvent.END)
        else:
            self._take(AttemptEvent.LOST, reason)

    def crashed(self) -> None:
        """Post a defect; call from an `except` block."""
        self._inbox.post(Outcome.CRASHED, self)

    # calls from the request

    def comment(self) -> None:
        """Keep only the answer's content back: the client has got comments, and a head, from the gateway."""
        if self._opening is not None:
            self._opening.comment()

    def give_up(self, reason: str, *, late: bool = False) -> None:
        """Fail before the first event, because the worker was lost, or its answer is `late`."""
        self._take(AttemptEvent.LATE if late else AttemptEvent.GIVEN_UP, reason)

    def pause(self, paused: bool) -> None:
        """Stop reading the answer while the client does not read, or resume."""
        self._paused = paused
        if self.connection is not None:
            self.connection.set_reading(not paused)

    def release(self, *, reusable: bool) -> None:
        """Stop dialling, or release the connection. A connection that is not `reusable` is closed."""
        self._take(AttemptEvent.RELEASED)
        self._free(reusable=reusable)

    def _free(self, *, reusable: bool) -> None:
        dial, self._dial = self._dial, None
        if dial is not None:
            dial.cancel()
        connection, self.connection = self.connection, None
        self._relay = None  # breaks reference cycles, so that no garbage collection is needed
        if connection is not None:
            if self._paused:
                connection.set_reading(True)
            connection.release(reusable)

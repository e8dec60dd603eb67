"""One try of a request at one worker: a connection found, the request sent, the answer judged by how it begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from router.gateway.http.headers import request_to_worker
from router.gateway.http.json_structs import MistakeBody
from router.gateway.http.response_head import ResponseHead
from router.gateway.http.sse import StreamError
from router.gateway.http.upstream_connection import UpstreamConnection
from router.gateway.phases import Phase
from router.gateway.relay import Out
from router.placement.lifecycle_events import FailurePoint
from router.placement.tickets import Ticket

if TYPE_CHECKING:
    from router.gateway.client import ClientConnection
    from router.gateway.http.request_head import RequestHead
    from router.gateway.http.tunnel import Tunnel
    from router.gateway.plane import Plane
    from router.gateway.relay import Relay
    from router.gateway.rewrites.body_rewriter import OutgoingBody

# Server errors that speak of the request and not of the worker: another worker would say the same.
_NOT_A_FAILURE = frozenset({501, 505})
NOT_FOUND_BYTES = 4_096
"""A 404 whose body is longer, framing included, is passed on unread."""

ERROR_BYTES = 65_536
"""A server error whose body is longer, framing included, is not passed on."""
ERROR_BODY_S = 1.0
"""How long the body of a server error is waited for."""
STALE_S = 0.01
"""A pooled connection that breaks sooner than this after a request was written had been closed before."""

_MISTAKE = msgspec.json.Decoder(MistakeBody)


class Owner(Protocol):
    """Whose attempt it is."""

    plane: Plane
    client: ClientConnection
    head: RequestHead
    request_id: bytes
    upgrade: bool
    phase: Phase
    relay: Relay
    withheld: frozenset[bytes]
    """Names of the client's headers that no worker gets."""
    tunnel: Tunnel | None

    @property
    def body_key(self) -> int:
        """What `Quarantine` knows the request by; 0 for one without a body."""
        ...

    def enter(self, phase: Phase) -> None:
        """The attempt waits for something else now."""

    def outgoing(self, ticket: Ticket) -> OutgoingBody:
        """What goes to the ticket's worker."""
        ...

    def replaceable(self, phase: FailurePoint) -> bool:
        """Whether another worker would answer if this attempt failed in `phase`."""
        ...

    def attempt_failed(self, phase: FailurePoint, reason: str, retry_after_s: float | None = None) -> None:
        """It failed before its first real event."""

    def opened(self, response: ResponseHead) -> None:
        """The first real event: from here on this worker's answer is the answer."""

    def answered(self, response: ResponseHead) -> None:
        """The worker's answer is complete."""

    def error_answered(self, response: ResponseHead) -> None:
        """The worker answered with a server error, which is complete, and no other is to be tried."""

    def answer_lost(self, reason: str, broke_http: bool) -> None:
        """The answer, once begun, broke off."""

    def switch_protocols(self, response: ResponseHead, connection: UpstreamConnection) -> None:
        """The worker agreed to an upgrade."""

    def crashed(self) -> None:
        """A defect of ours, called from an `except` block."""


class Attempt:
    """The request of `ticket` at its worker.

    Until the first real event its failure is told to `Owner.attempt_failed`; from `Owner.opened` on the answer is this
    worker's, and its loss goes to `Owner.answer_lost`.
    """

    __slots__ = (
        "_connected_s",
        "_dial",
        "_late",
        "_plane",
        "_sent_s",
        "connection",
        "owner",
        "response",
        "response_read",
        "ticket",
    )

    def __init__(self, owner: Owner, ticket: Ticket) -> None:
        self.owner = owner
        self._plane = owner.plane
        self._dial: asyncio.Task[None] | None = None
        self._late: asyncio.TimerHandle | None = None
        """Runs while the body of a server error is read."""
        self._sent_s: float | None = None
        """When the request was last written."""
        self._connected_s = 0.0
        """When the connection was made that it was written to."""
        self.ticket = ticket
        self.connection: UpstreamConnection | None = None
        self.response: ResponseHead | None = None
        self.response_read: Callable[[bytes], None] = _ignore

    # sending

    def begin(self, *, fresh: bool = False) -> None:
        """Send to the ticket's worker, on an idle connection unless `fresh`."""
        endpoint = self.ticket.candidate.endpoint.endpoint
        connection = None if fresh or self.owner.upgrade else self._plane.pools.take(endpoint)
        if connection is not None:
            self._send(connection)
            return
        self.owner.enter(Phase.DIAL)
        self._dial = self._plane.pools.dial(endpoint, self)

    def dialled(self, connection: UpstreamConnection) -> None:
        """A new connection is there."""
        self._dial = None
        self._send(connection)

    def dial_failed(self, reason: str, *, ours: bool) -> None:
        """The worker cannot be reached, or we cannot reach anybody."""
        self._dial = None
        if ours:
            self.owner.attempt_failed(FailurePoint.LOCAL, reason)
        elif self._sent_s is not None:
            # the pooled connection had not died idle: the worker is gone, and had the request
            self._suspect(lost=True)
            self.owner.attempt_failed(FailurePoint.SENT, f"connection closed by the worker, then: {reason}")
        else:
            self.owner.attempt_failed(FailurePoint.CONNECT, f"cannot connect: {reason}")

    def _send(self, connection: UpstreamConnection) -> None:
        owner, candidate = self.owner, self.ticket.candidate
        self.connection = connection
        self.response = None
        self.response_read = self._read_before_first
        owner.enter(Phase.FIRST_EVENT)
        body, usage_frame = owner.outgoing(self.ticket)
        keys = self._plane.worker_keys
        head = request_to_worker(
            owner.head,
            len(body),
            candidate.endpoint.endpoint,
            owner.request_id,
            candidate.rank,
            owner.client.peer.encode("ascii"),
            owner.upgrade,
            plain=usage_frame is not None,
            authorization=keys.line(candidate.endpoint.id) if keys is not None else None,
            scheme=self._plane.scheme,
            worker=candidate.id,
            withheld=owner.withheld,
        )
        connection.send(self, head, body, owner.head.method == "HEAD")
        self._sent_s = self._plane.time()
        self._connected_s = connection.connected_s
        owner.relay.attach(connection, usage_frame)
        if not owner.client.writable:
            connection.pause_reading()

    # what the worker does

    def response_began(self, response: ResponseHead) -> None:
        """A final head: decide whether this is an answer or a failure."""
        self.response = response
        status = response.status
        if status == 503:
            self.let_go(reusable=True)
            retry_after_s = _seconds(response.fields.get(b"retry-after"))
            self.owner.attempt_failed(FailurePoint.REFUSED, f"HTTP {status}", retry_after_s)
        elif status >= 500 and status not in _NOT_A_FAILURE:
            self._suspect(lost=False)
            if response.until_close:
                self._erred()
            else:
                self.response_read = self._read_error
                self._late = self._plane.loop.call_later(ERROR_BODY_S, self._erred)
        elif status == 404:
            if self.ticket.request.model is not None and not response.events:
                self.response_read = self._read_not_found
        elif status == 101:
            if self.owner.upgrade and self.connection is not None:
                self.owner.switch_protocols(response, self.connection)
            else:
                self.worker_lost("unexpected 101", True)

    def _read_before_first(self, data: bytes) -> None:
        """Body bytes while nothing has been let through yet."""
        assert self.response is not None
        verdict = self.owner.relay.hold(data, self.response)
        if verdict is True:
            self.owner.opened(self.response)
        elif isinstance(verdict, StreamError):
            self.let_go(reusable=False)
            phase = FailurePoint.REFUSED if verdict.status == 503 else FailurePoint.ANSWERED
            if phase is FailurePoint.ANSWERED:
                self._suspect(lost=False)
            # not the worker's words: they may repeat the prompt, and a reason is logged and kept
            self.owner.attempt_failed(phase, f"error as first event, status {verdict.status or 'not given'}")
        elif verdict is None:
            self.worker_lost("no event among too many bytes", True)

    def _read_not_found(self, data: bytes) -> None:
        """Body bytes of a 404, which is judged once all of it is here, unless it is long."""
        assert self.response is not None and self.connection is not None
        if self.connection.raw_bytes > NOT_FOUND_BYTES:
            self.response_read = self._read_before_first
            self._read_before_first(data)
        else:
            self.owner.relay.hold(data, self.response)

    def _read_error(self, data: bytes) -> None:
        """Body bytes of a server error, which is passed on as it is where no other worker is tried."""
        assert self.response is not None and self.connection is not None
        if self.connection.raw_bytes > ERROR_BYTES:
            self._erred()
        else:
            self.owner.relay.hold(data, self.response)

    def _erred(self) -> None:
        """The worker answered with a server error, of which there is no more to be had."""
        response = self.response
        self.let_go(reusable=True)
        try:
            self.owner.attempt_failed(FailurePoint.ANSWERED, f"HTTP {response.status if response is not None else 0}")
        except Exception:
            self.crashed()

    def _unserved(self) -> bool:
        """Whether a complete 404 says that the worker does not serve the model that it has listed, and another worker
        would answer. Where none would, the 404 is the answer; what is served is looked up again in any case."""
        model, connection = self.ticket.request.model, self.connection
        if model is None or connection is None or connection.raw_bytes > NOT_FOUND_BYTES:
            return False
        if self.owner.head.fields.get(b"content-type", b"").lower().startswith(b"multipart/"):
            return False  # a form may name two models, and the worker may have taken the other one
        if not self.ticket.candidate.endpoint.models_known or not _is_about_the_model(b"".join(connection.pieces)):
            return False
        self._plane.fleet.unknown_model(model)
        return self.owner.replaceable(FailurePoint.UNSERVED)

    def response_ended(self) -> None:
        """The worker's answer is complete."""
        owner, response = self.owner, self.response
        assert response is not None
        if owner.phase is Phase.FIRST_EVENT:
            if self._late is not None:
                self._late.cancel()
                if owner.replaceable(FailurePoint.ANSWERED):
                    self._erred()
                else:
                    owner.error_answered(response)
                return
            if response.events and response.status == 200 and not response.bodiless:
                self.worker_lost("the stream ended without an event", False)
                return
            if response.status == 404 and self._unserved():
                self.let_go(reusable=True)
                owner.attempt_failed(FailurePoint.UNSERVED, "HTTP 404: it does not serve the model")
                return
            if owner.relay.out is Out.NOTHING:
                owner.opened(response)
        owner.answered(response)

    def worker_lost(self, reason: str, broke_http: bool) -> None:
        """The answer will not be completed on this connection."""
        owner, connection = self.owner, self.connection
        erred = self.response if self._late is not None else None
        stale = connection is not None and connection.reused and connection.silent and not broke_http
        self.let_go(reusable=False)
        if owner.phase is Phase.FIRST_EVENT and erred is not None:
            owner.attempt_failed(FailurePoint.ANSWERED, f"HTTP {erred.status}")
        elif owner.phase is not Phase.FIRST_EVENT:
            owner.answer_lost(reason, broke_http)
        elif stale:
            # closed by the worker while it lay idle: says nothing about the worker, and does not count
            if self._sent_s is not None and self._plane.time() - self._sent_s > STALE_S:
                self._suspect(lost=True)
            self._plane.metrics.redialled()
            self.begin(fresh=True)
        else:
            if not broke_http and connection is not None and not connection.complete:
                self._suspect(lost=True)
            owner.attempt_failed(FailurePoint.SENT, reason)

    def _suspect(self, *, lost: bool) -> None:
        """The worker may have died of the request: its connection was `lost`, or it answered with a server error."""
        self._plane.quarantine.failed(self.ticket.candidate.endpoint, self.owner.body_key, self._connected_s, lost=lost)

    def worker_writable(self, writable: bool) -> None:
        """Only a tunnel can write faster than its worker reads."""
        if self.owner.tunnel is not None:
            self.owner.client.set_reading(writable)

    def crashed(self) -> None:
        """A defect of ours, called from an `except` block."""
        self.owner.crashed()

    # its end

    def let_go(self, *, reusable: bool) -> None:
        """Give up dialling, or give the connection back."""
        late, self._late = self._late, None
        if late is not None:
            late.cancel()
        dial, self._dial = self._dial, None
        if dial is not None:
            dial.cancel()
        connection, self.connection = self.connection, None
        self.response_read = _ignore  # no cycles left behind: the collector has enough to do
        if connection is not None:
            if not self.owner.client.writable:
                connection.resume_reading()
            connection.release(reusable)


def _ignore(data: bytes) -> None:
    """Bytes that nobody waits for."""


def _is_about_the_model(body: bytes) -> bool:
    """Whether `body` is an OpenAI error about the parameter `model`."""
    try:
        error = _MISTAKE.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return error is not None and error.param == "model"


def _seconds(value: bytes | None) -> float | None:
    """Retry-After in seconds; dates and nonsense count as not given."""
    return float(value) if value is not None and len(value) <= 6 and value.isdigit() else None

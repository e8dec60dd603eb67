from __future__ import annotations

from typing import Final, Protocol

from router.errors import RequestError
from router.gateway.flow.answer.relay import Relay
from router.gateway.flow.flow import Flow
from router.gateway.flow.plan import RequestPlan, ResumingPlan
from router.gateway.flow.transitions import RequestState
from router.gateway.http.client.input import ClientInput
from router.gateway.http.client.output import ClientOutput
from router.gateway.http.client.tunnel import Tunnel
from router.gateway.http.upstream.headers import request_to_worker
from router.gateway.http.upstream.pool import ConnectionPool
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.request import Usage
from router.placement.tickets import Ticket
from router.requests.incoming import IncomingRequest
from router.requests.metrics import Labels
from router.requests.outgoing import AnswerFilter, OutgoingBody
from router.requests.request_head import RequestHead
from router.requests.rewrites.model_name import renamed
from router.requests.routes import Route
from router.security.callers import Caller

_NO_USAGE: Final = Usage()


class RequestClient(Protocol):
    """A client's connection as its request sees it."""

    peer: str
    caller: Caller
    deadline_s: float
    """`RequestDriver.expired` is called at this time."""
    writable: bool
    """False while the client has too many unread bytes."""
    input: ClientInput
    output: ClientOutput

    @property
    def may_go_on(self) -> bool:
        """Whether another request may follow on this connection."""

    def open_tunnel(self, tunnel: Tunnel) -> None:
        """Give the tunnel the bytes that were read ahead; it also gets all later ones."""

    def body_done(self, kept_bytes: int) -> None:
        """Count no more than `kept_bytes` of the body from now on."""

    def request_ended(self, keep_alive: bool) -> None:
        """Continue after the request; close the connection unless `keep_alive`."""

    def abort(self) -> None: ...


class OutboundRequest(IncomingRequest):
    """A request that goes to workers over HTTP: its client, its flow, its answer, and what the log says of it.

    `relay` writes the answer, and `error` is the gateway's own in its place or at its end. `upgrade`: the client asks
    for a protocol switch that the route allows. `body` is released when a worker answers.
    """

    __slots__ = (
        "answered", "client", "error", "flow", "keeps_open", "labels", "left_in", "output_tokens", "overdrawn",
        "peer", "plan", "promised", "relay", "resumed", "ttft_s", "tunnel", "upgrade", "usage",
    )  # fmt: skip

    def __init__(
        self,
        head: RequestHead,
        body: bytes,
        route: Route,
        request_id: bytes,
        client: RequestClient,
        arrived_s: float,
        flow: Flow,
        relay: Relay,
    ) -> None:
        super().__init__(head, body, route, request_id, client.caller, arrived_s)
        self.client = client
        self.flow = flow
        self.relay = relay
        self.peer = client.peer
        self.upgrade = head.websocket and route.upgrades and not head.has_body
        self.plan: RequestPlan | None = None
        """How workers share the request, also after that was given up."""
        self.resumed: ResumingPlan | None = None
        """The plan by which the answer in progress goes on, until it is placed."""
        self.ttft_s: float | None = None
        """The time to the first event of the answer, in seconds."""
        self.labels: Labels | None = None
        """Those of the metrics, once the answer has begun."""
        self.usage = _NO_USAGE
        """What a complete answer reports."""
        self.answered: Usage | None = None
        """The usage of a complete answer, zero for an error; None without one."""
        self.output_tokens: int | None = None
        """The length of a complete answer: as reported, or else as estimated from its events; None if not known."""
        self.error: RequestError | None = None
        self.left_in: RequestState | None = None
        """The state in which the client closed its connection, before its answer was complete."""
        self.promised: bool | None = None
        """The response's head keeps the connection open; None before that is decided."""
        self.keeps_open = False
        """The response ended such that the next one can follow on the connection."""
        self.tunnel: Tunnel | None = None
        """Set after a protocol switch."""
        self.overdrawn = False
        """The tunnel has used more than its caller's bucket holds, and the tokens lent beside it."""

    @property
    def last_read_s(self) -> float:
        """When the last byte of the answer, or of either side of the tunnel, arrived."""
        return self.relay.last_read_s if self.tunnel is None else self.tunnel.last_read_s

    @property
    def error_code(self) -> str | None:
        return None if self.error is None else self.error.kind.spec.code

    @property
    def beside(self) -> tuple[FleetEndpoint, ...]:
        """The endpoint of a leg that runs beside the client's, if any."""
        beside = None if self.plan is None else self.plan.beside
        return () if beside is None else (beside,)

    @property
    def kept_bytes(self) -> int:
        """What features keep of the body and of the answer."""
        return sum(rewrite.kept_bytes for rewrite in self.rewrites)

    def promise(self) -> bool:
        """Return whether the connection stays open: decided when the answer's head is written, and then final."""
        if self.promised is None:
            self.promised = self.head.keep_alive and self.client.may_go_on
        return self.promised

    def arm(self) -> None:
        """Set the time of the next deadline."""
        self.client.deadline_s = self.flow.next_s(self.last_read_s)

    def written(
        self, ticket: Ticket, now_s: float, rank: int | None, pools: ConnectionPool, *, plain: bool
    ) -> tuple[bytes, bytes, AnswerFilter | None]:
        """Return the head and the body for the ticket's worker, as bytes, and the filter of the answer.

        `plain`: the answer must not be compressed.
        """
        (of_client, outgoing), plan = self._outgoing(ticket, now_s), self.plan
        own_id = None if plan is None else plan.request_id(ticket)
        head = request_to_worker(
            of_client,
            len(outgoing.body),
            ticket.candidate.endpoint.endpoint,
            self.id if own_id is None else own_id,
            rank,
            self.peer.encode("ascii"),
            self.upgrade,
            plain=plain or outgoing.answer_filter is not None,
            authorization=None if pools.keys is None else pools.keys.line(ticket.candidate.endpoint.id),
            scheme=pools.scheme,
            worker=ticket.candidate.id,
            withheld=self.withheld,
            via=pools.via,
        )
        if plan is not None and (line := plan.worker_line(ticket)):
            head = b"%b%b\r\n%b" % (head[:-2], line, head[-2:])
        return head, outgoing.body, outgoing.answer_filter

    def _outgoing(self, ticket: Ticket, now_s: float) -> tuple[RequestHead, OutgoingBody]:
        """Return head and body for the ticket's worker."""
        plan = self.plan
        if plan is not None and (own := plan.own_body(ticket, now_s)) is not None:
            return self.head, own
        head, body, model = self.head, self.body, ticket.request.model
        if model is not None and model != self.named:  # a fallback
            head, body, _ = renamed(self.route, head, body, self.form, self.named, model)
            self.withheld = self.caller.withheld_salted
        made = OutgoingBody(body)
        for rewrite in self.rewrites:
            made = rewrite.outgoing(made, ticket, now_s)
        return head, made if plan is None else plan.added_to(made, ticket, now_s)

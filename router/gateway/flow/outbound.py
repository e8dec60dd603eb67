from __future__ import annotations

from typing import Final

from router.gateway.flow.plan import RequestPlan
from router.gateway.http.upstream.headers import request_to_worker
from router.gateway.http.upstream.pool import ConnectionPool
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


class OutboundRequest(IncomingRequest):
    """A request that goes to workers over HTTP, and what the log says of it.

    `upgrade`: the client asks for a protocol switch that the route allows. `body` is released when a worker answers.
    """

    __slots__ = ("complete", "labels", "output_tokens", "peer", "plan", "ttft_s", "upgrade", "usage")

    def __init__(
        self,
        head: RequestHead,
        body: bytes,
        route: Route,
        request_id: bytes,
        peer: str,
        caller: Caller,
        arrived_s: float,
    ) -> None:
        super().__init__(head, body, route, request_id, caller, arrived_s)
        self.peer = peer
        self.upgrade = head.websocket and route.upgrades and not head.has_body
        self.plan: RequestPlan | None = None
        """How workers share the request, also after that was given up."""
        self.ttft_s: float | None = None
        """The time to the first event of the answer, in seconds."""
        self.labels: Labels | None = None
        """Those of the metrics, once the answer has begun."""
        self.usage = _NO_USAGE
        """What a complete answer reports."""
        self.complete = False
        self.output_tokens: int | None = None
        """The length of a `complete` answer: as reported, or else as estimated from its events; None if not known."""

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

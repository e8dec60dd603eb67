from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from router.gateway.flow.layer import Layer
from router.gateway.flow.plan import RequestPlan
from router.gateway.http.client.request_head import RequestHead
from router.gateway.http.client.routes import Route
from router.gateway.http.upstream.headers import request_to_worker
from router.gateway.http.upstream.pool import ConnectionPool
from router.gateway.metrics import Labels
from router.gateway.queues.route_queue import RouteQueue
from router.gateway.rewrites.body_rewriter import OutgoingBody, RequestRewrites
from router.gateway.rewrites.model_name import renamed
from router.gateway.rewrites.usage_frame import UsageFrame
from router.placement.request import Request, Usage
from router.placement.tickets import Ticket
from router.security.callers import Caller
from router.tokenization.body.multipart import Form
from router.tracing.context import traced

_NO_USAGE: Final = Usage()


class OutboundRequest:
    """A request's head and body, its caller and its route, and what the log says of it.

    `upgrade`: the client asks for a protocol switch that the route allows. `size_bytes` is the size of the body as it
    arrived. `body` may get a cache salt, and is released when a worker answers.
    """

    __slots__ = (
        "alternatives", "arrived_s", "body", "caller", "complete", "digest", "exemplar", "form", "head", "id", "key",
        "labels", "layers", "named", "output_tokens", "peer", "plan", "queued_for_model", "request", "rewrites",
        "route", "route_slot", "size_bytes", "ticket", "ttft_s", "upgrade", "usage", "withheld",
    )  # fmt: skip

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
        self.head = head
        self.body = body
        self.size_bytes = len(body)
        self.route = route
        self.id = request_id
        self.peer = peer
        self.caller = caller
        self.arrived_s = arrived_s
        """When the request's last byte arrived."""
        self.withheld: frozenset[bytes] = caller.withheld
        """Names of the client's headers that no worker gets."""
        self.upgrade = head.websocket and route.upgrades and not head.has_body
        self.rewrites: RequestRewrites | None = None
        self.request: Request | None = None
        """The request for the dispatcher, once it is identified."""
        self.digest: int | None = None
        """The digest of a parsed body."""
        self.form: Form | None = None
        """What was read of `body`, if it is a form."""
        self.route_slot: RouteQueue | None = None
        """The queue of the request's route, while the request counts against the route's limit."""
        self.plan: RequestPlan | None = None
        """How workers share the request, also after that was given up."""
        self.named: str | None = None
        """The model that the body, or the query, names."""
        self.alternatives: dict[str, Request] | None = None
        """The request as it is for each fallback of its model that was needed."""
        self.layers: Sequence[Layer] = ()
        """What features do for the request; empty while all are off."""
        context = traced(head.fields.get(b"traceparent"))
        self.exemplar = context.trace_id if context is not None and context.sampled else None
        """The trace that metrics name as an example of the request; None if it is not sampled."""
        self.queued_for_model: str | None = None
        """The model whose workers are at their limit, while the request is queued until one has room."""
        self.key = 0
        """The quarantine's key of the body; 0 until it is first needed."""
        self.ticket: Ticket | None = None
        """The last placement."""
        self.ttft_s: float | None = None
        """The time to the first event of the answer, in seconds."""
        self.labels: Labels | None = None
        """Those of the metrics, once the answer has begun."""
        self.usage = _NO_USAGE
        """What a complete answer reports."""
        self.complete = False
        self.output_tokens: int | None = None
        """The length of a `complete` answer: as reported, or else as estimated from its events; None if not known."""

    def rename(self, model: str) -> None:
        """Put `model` into head and body in place of the model that they name.

        Raises:
            RequestError: INVALID_BODY; the body cannot be changed with certainty.
        """
        self.head, self.body, self.form = renamed(self.route, self.head, self.body, self.form, self.named, model)

    def written(
        self, ticket: Ticket, now_s: float, rank: int | None, pools: ConnectionPool, *, plain: bool
    ) -> tuple[bytes, bytes, UsageFrame | None]:
        """Return the head and the body for the ticket's worker, as bytes, and the filter of the usage in the answer.

        `plain`: the answer must not be compressed.
        """
        outgoing, plan = self._outgoing(ticket, now_s), self.plan
        body, usage_frame = outgoing.body, outgoing.usage_frame
        own_id = None if plan is None else plan.request_id(ticket)
        head = request_to_worker(
            outgoing.head,
            len(body),
            ticket.candidate.endpoint.endpoint,
            self.id if own_id is None else own_id,
            rank,
            self.peer.encode("ascii"),
            self.upgrade,
            plain=plain or usage_frame is not None,
            authorization=None if pools.keys is None else pools.keys.line(ticket.candidate.endpoint.id),
            scheme=pools.scheme,
            worker=ticket.candidate.id,
            withheld=self.withheld,
            via=pools.via,
        )
        if plan is not None and (line := plan.worker_line(ticket)):
            head = b"%b%b\r\n%b" % (head[:-2], line, head[-2:])
        return head, body, usage_frame

    def _outgoing(self, ticket: Ticket, now_s: float) -> OutgoingBody:
        """Return head and body for the ticket's worker, and the filter of the usage in the answer."""
        plan = self.plan
        if plan is not None and (own := plan.own_body(self.head, ticket, now_s)) is not None:
            return own
        head, body, model = self.head, self.body, ticket.request.model
        if model is not None and model != self.named:  # a fallback
            head, body, _ = renamed(self.route, head, body, self.form, self.named, model)
            self.withheld = self.caller.withheld_salted
        rewrites = self.rewrites
        made = OutgoingBody(head, body) if rewrites is None else rewrites.outgoing(head, body, ticket, now_s)
        return made if plan is None else plan.added_to(made, ticket, now_s)

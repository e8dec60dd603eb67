"""A request while it is in progress, as every front keeps it."""

from __future__ import annotations

from collections.abc import Container, Sequence

from router.placement.admission.classes import Claim
from router.placement.request import Request
from router.placement.tickets import Ticket
from router.requests.layer import Layer, Rewrite
from router.requests.queues.limited import LimitedQueue
from router.requests.request_head import RequestHead
from router.requests.rewrites.model_name import renamed
from router.requests.routes import Route
from router.security.callers import Caller
from router.tokenization.body.multipart import Form
from router.tracing.context import traced


class IncomingRequest:
    """A request's head and body, its caller and its route, and what is found out about it until a worker gets it.

    `size_bytes` is the size of the body as it arrived. `body` may get a cache salt or another model's name.
    """

    __slots__ = (
        "admitted_by", "alternatives", "arrived_s", "begun", "body", "caller", "claim", "digest", "exemplar", "form",
        "head", "id", "key", "layers", "named", "queued_for_model", "request", "rewrites", "route", "service_tier",
        "size_bytes", "ticket", "withheld", "within",
    )  # fmt: skip

    def __init__(
        self,
        head: RequestHead,
        body: bytes,
        route: Route,
        request_id: bytes,
        caller: Caller,
        arrived_s: float,
    ) -> None:
        self.head = head
        self.body = body
        self.size_bytes = len(body)
        self.route = route
        self.id = request_id
        self.caller = caller
        self.arrived_s = arrived_s
        """When the request's last byte arrived."""
        self.begun = False
        """Part of a worker's answer has gone to the client."""
        self.withheld: frozenset[bytes] = caller.withheld
        """Names of the client's headers that no worker gets."""
        self.request: Request | None = None
        """The request for the dispatcher, once it is identified."""
        self.digest: int | None = None
        """The digest of a parsed body."""
        self.form: Form | None = None
        """What was read of `body`, if it is a form."""
        self.admitted_by: LimitedQueue | None = None
        """The queue against whose limit the request counts."""
        self.claim: Claim | None = None
        """Its class and tenant, once it asks for a worker and there are classes."""
        self.service_tier: str | None = None
        """The one that the body names."""
        self.named: str | None = None
        """The model that the body, or the query, names."""
        self.alternatives: dict[str, Request] | None = None
        """The request as it is for each fallback of its model that was needed."""
        self.layers: Sequence[Layer] = ()
        """What features do for the request; empty while all are off."""
        self.rewrites: Sequence[Rewrite] = ()
        """What features change in its body."""
        context = traced(head.fields.get(b"traceparent"))
        self.exemplar = context.trace_id if context is not None and context.sampled else None
        """The trace that metrics name as an example of the request; None if it is not sampled."""
        self.queued_for_model: str | None = None
        """The model whose workers are at their limit, while the request is queued until one has room."""
        self.key = 0
        """The quarantine's key of the body; 0 until it is first needed."""
        self.ticket: Ticket | None = None
        """The last placement."""
        self.within: Container[str] | None = None
        """The endpoints to which whoever sent the request limits it; None for all."""

    def rename(self, model: str) -> None:
        """Put `model` into head and body in place of the model that they name.

        Raises:
            RequestError: INVALID_BODY; the body cannot be changed with certainty.
        """
        self.head, self.body, self.form = renamed(self.route, self.head, self.body, self.form, self.named, model)

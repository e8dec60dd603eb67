"""What a feature does for one request, beside the table of the flow.

The driver, the attempts and the steps call the layers of a request at fixed points of its life. They know no
feature by name. The idea is that of mitmproxy's layers: a feature is added or removed as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from router.config.model import RouteConfig
from router.errors import RequestError
from router.metrics.instruments import Reading
from router.placement.admission.classes import Claim
from router.placement.request import FailurePoint, Request, Usage
from router.placement.tickets import Held, Queued, Ticket
from router.requests.outgoing import AnswerFilter, OutgoingBody
from router.requests.queues.limited import LimitedQueue
from router.requests.request_head import RequestHead
from router.requests.routes import Route
from router.security.callers import Caller
from router.tokenization.body.parsed_body import ParsedBody


class LayeredRequest(Protocol):
    """A request as layers see it."""

    head: RequestHead
    route: Route
    caller: Caller
    id: bytes
    named: str | None
    request: Request | None
    arrived_s: float
    claim: Claim | None
    service_tier: str | None
    exemplar: str | None
    rewrites: Sequence[Rewrite]


class LayeredFailure(Protocol):
    """Why an attempt failed."""

    @property
    def point(self) -> FailurePoint: ...


class LayeredResponse(Protocol):
    """The head of an answer."""

    @property
    def status(self) -> int: ...

    @property
    def events(self) -> bool: ...


class LayeredAttempt(Protocol):
    """An attempt as layers see it."""

    ticket: Ticket
    since_s: float

    @property
    def response(self) -> LayeredResponse | None: ...

    @property
    def answer_filter(self) -> AnswerFilter | None:
        """The filter of the answer, as its request was written last."""

    @property
    def failure(self) -> LayeredFailure | None: ...

    @property
    def sent(self) -> bool: ...


class RequestEnd(NamedTuple):
    """How a request ended.

    `error` is the code of the gateway's error. `ttft_s` is None if no event arrived, `ticket` if no worker was chosen.
    `answered` is the usage of a complete answer, zero for an error; None without one. `text_bytes` of the answer's text
    were sent, or carried by a `tunnel`. `served`: a worker has worked on it. `left`: the client closed first.
    """

    status: int
    ended_s: float
    duration_s: float
    ttft_s: float | None
    usage: Usage
    error: str | None
    ticket: Ticket | None
    answered: Usage | None
    text_bytes: int
    served: bool
    left: bool
    tunnel: bool


class Layer:
    """One feature's part in one request. Override what the feature needs; the rest does nothing."""

    __slots__ = ()

    def started(self, now_s: float) -> RequestError | None:
        """Note that the request's head and body have arrived. An error refuses it."""
        return None

    def identified(self, now_s: float) -> RequestError | None:
        """Note that the request's prompt is known as far as it will be. An error refuses it."""
        return None

    def decided(self, placed: Ticket | Queued | Held | RequestError, now_s: float, took_s: float) -> None:
        """Note the answer to a call for a worker, which took `took_s`."""

    def attempted(self, attempt: LayeredAttempt, now_s: float, leg: str) -> None:
        """Note that an attempt begins. `leg` names its part in a KV handover; it is empty without one."""

    def worker_lines(self, attempt: LayeredAttempt) -> bytes:
        """Return header lines, each with its CRLF, for the worker of the attempt."""
        return b""

    def response_lines(self, ticket: Ticket | None) -> bytes:
        """Return header lines, each with its CRLF, for the client. `ticket` is the placement that answers, if any."""
        return b""

    def seam_comment(self, ticket: Ticket) -> bytes:
        """Return SSE comments for the client, whose answer goes on with `ticket`."""
        return b""

    def carried(self, tunnel_bytes: int, now_s: float) -> bool:
        """Note how many bytes a tunnel has carried, after every few thousand. Return whether the tunnel has to end."""
        return False

    def ended(self, end: RequestEnd) -> None:
        """Note the end of the request, which comes exactly once."""


class Resumption(Protocol):
    """How an answer in progress goes on after its worker has died: what is placed, and the endpoint that is lost.

    It is a plan of the front's flow, which sends the request.
    """

    request: Request
    lost: str


class Rewrite:
    """What a feature changes in the body of one request, and what it learns from the answer."""

    __slots__ = ()

    def outgoing(self, made: OutgoingBody, ticket: Ticket, now_s: float) -> OutgoingBody:
        """Return the body for the ticket's worker. Called each time that the request is written."""
        raise NotImplementedError

    def takes_back(self, attempt: LayeredAttempt) -> bool:
        """Leave an addition out from now on, which the worker may have refused. Return whether there was one."""
        return False

    @property
    def kept_bytes(self) -> int:
        """What the feature keeps of the body, and of the answer, while that runs: it counts as part of the body."""
        return 0

    def begun(self) -> None:
        """Note that the client has a token of the answer, perhaps not the first time."""

    def resumption(self, attempt: LayeredAttempt, trigger: str, read_s: float, preamble: bytes) -> Resumption | None:
        """Return how the answer of a failed attempt goes on, of which the last byte came at `read_s`; None to end it.

        `trigger` says how the attempt failed. `preamble` is all that the client has if it has no token; else empty.
        """
        return None

    def answered(self, attempt: LayeredAttempt, tail: Sequence[bytes], usage: Usage) -> None:
        """Note a complete answer, the end of its body and the usage that it reports."""


class Feature:
    """Makes the layers of a feature, or limits a part of the requests. Override what the feature needs."""

    def layer(self, request: LayeredRequest) -> Layer | None:
        """Return the layer of a request; None if the request does not concern the feature."""
        return None

    def adopt(self, routes: Sequence[RouteConfig]) -> bool:
        """Use other routes. Return whether the feature is on."""
        return True

    def readings(self) -> Iterable[Reading]:
        """Yield the gauges and counters that a scrape reads, also while the feature is off."""
        return ()

    def statistics(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        """Unsubscribe from other parts."""


def settings_by_route(routes: Sequence[RouteConfig], name: str, settings: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the settings of the layer `name` of each route that has it."""
    wanted = {route.name: route.layers[name] for route in routes if name in route.layers}
    return {route: msgspec.convert(one, settings) for route, one in wanted.items()}


class RouteFeature(Feature):
    """A feature that routes switch on: a route's `layers` has settings under its `name`, of the type `settings`."""

    name: ClassVar[str]
    settings: ClassVar[type[msgspec.Struct]]

    def adopt(self, routes: Sequence[RouteConfig]) -> bool:
        wanted = settings_by_route(routes, self.name, self.settings)
        self.switch_on(wanted)
        return bool(wanted)

    def switch_on(self, by_route: Mapping[str, Any]) -> None:
        """Use other settings: those of each route that has any."""
        raise NotImplementedError


class RewriteFeature(Feature):
    """A feature that changes the bodies that workers get."""

    def rewrite(self, request: LayeredRequest, parsed: ParsedBody) -> Rewrite | None:
        """Return what the feature does with a request whose body was read; None if that does not concern it."""
        raise NotImplementedError

    def previewed(self, incoming: LayeredRequest, body: bytes, request: Request) -> Mapping[str, Any]:
        """Return what the feature would do with a request that is explained and not sent, under the feature's name."""
        return {}


class QueueFeature(Feature):
    """A feature that limits how many requests of a kind are on workers at once."""

    def queue(self, request: Request) -> LimitedQueue | None:
        """Return the queue in which the request waits while its kind is at the limit; None without a limit."""
        raise NotImplementedError


class Features:
    """The features of one front, outermost first. Those that are off are asked nothing."""

    def __init__(self, features: Sequence[Feature], routes: Sequence[RouteConfig]) -> None:
        self.all = tuple(features)
        self._on: tuple[Feature, ...] = ()
        self._rewrites: tuple[RewriteFeature, ...] = ()
        self._queues: tuple[QueueFeature, ...] = ()
        self.adopt(routes)

    def adopt(self, routes: Sequence[RouteConfig]) -> None:
        on = [feature for feature in self.all if feature.adopt(routes)]
        self._rewrites = tuple([feature for feature in on if isinstance(feature, RewriteFeature)])
        self._queues = tuple([feature for feature in on if isinstance(feature, QueueFeature)])
        self._on = tuple([feature for feature in on if not isinstance(feature, (RewriteFeature, QueueFeature))])

    def read(self, request: LayeredRequest, parsed: ParsedBody) -> None:
        """Note which features change the request's body, which was read."""
        found = [feature.rewrite(request, parsed) for feature in self._rewrites]
        request.rewrites = [rewrite for rewrite in found if rewrite is not None]

    def previewed(self, incoming: LayeredRequest, body: bytes, request: Request) -> dict[str, Any]:
        parts = [feature.previewed(incoming, body, request) for feature in self._rewrites]
        return {name: each for part in parts for name, each in part.items()}

    def queue(self, request: Request) -> LimitedQueue | None:
        """Return the queue with a limit that the request belongs to; most requests have none."""
        for feature in self._queues:
            if (queue := feature.queue(request)) is not None:
                return queue
        return None

    def readings(self) -> Iterable[Reading]:
        return [reading for feature in self.all for reading in feature.readings()]

    def statistics(self) -> dict[str, Any]:
        return {name: each for feature in self.all for name, each in feature.statistics().items()}

    def close(self) -> None:
        for feature in self.all:
            feature.close()

    def layers(self, request: LayeredRequest) -> Sequence[Layer]:
        return [layer for feature in self._on if (layer := feature.layer(request)) is not None]

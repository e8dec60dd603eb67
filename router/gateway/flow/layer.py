"""What a feature does for one request, apart from the flow's table.

The driver, the attempts and the responder call the layers of a request at fixed points of its life. They know no
feature by name. The idea is that of mitmproxy's layers: a feature is added or removed as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from router.errors import RequestError
from router.gateway.flow.outcomes import Failure
from router.gateway.http.client.request_head import RequestHead
from router.gateway.http.client.routes import Route
from router.placement.request import Request, Usage
from router.placement.tickets import Held, Queued, Ticket


class LayeredRequest(Protocol):
    """A request as layers see it."""

    head: RequestHead
    route: Route
    id: bytes
    named: str | None
    request: Request | None
    arrived_s: float
    exemplar: str | None


class LayeredAttempt(Protocol):
    """An attempt as layers see it."""

    ticket: Ticket
    failure: Failure | None
    sent: bool
    since_s: float


class RequestEnd(NamedTuple):
    """How a request ended. `error` is the code of the gateway's error; `ttft_s` is None if no event arrived."""

    status: int
    duration_s: float
    ttft_s: float | None
    usage: Usage
    error: str | None


class Layer:
    """One feature's part in one request. Override what the feature needs; the rest does nothing."""

    __slots__ = ()

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

    def ended(self, end: RequestEnd) -> None:
        """Note the end of the request, which comes exactly once."""


class Feature:
    """Makes the layers of a feature that is on."""

    def layer(self, request: LayeredRequest) -> Layer | None:
        """Return the layer of a request; None if the request does not concern the feature."""
        raise NotImplementedError


def layers_of(features: Sequence[Feature], request: LayeredRequest) -> Sequence[Layer]:
    """Return the layers of a request, outermost first. Without features it costs one comparison."""
    if not features:
        return ()
    return [layer for feature in features if (layer := feature.layer(request)) is not None]

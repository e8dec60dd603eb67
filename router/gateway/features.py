"""The features that are layers around the way of a request, outermost first. Each line names one folder of `layers`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from router.config.model import Config
from router.gateway.layers.receipt.layer import Receipts
from router.gateway.layers.response_header.layer import ResponseHeader
from router.gateway.layers.trace.layer import Tracer, TraceSink
from router.placement.ticket_life import Tickets
from router.requests.layer import Feature, Features, RouteFeature
from router.requests.layers.limits.layer import Limits

ROUTE_FEATURES: Final[dict[str, type[RouteFeature]]] = {
    "response_header": ResponseHeader,
}
"""The features that a route switches on, by their name in a route's `layers`."""


def features(config: Config, tickets: Tickets, time_s: Callable[[], float], traces: TraceSink | None) -> Features:
    """Return the features of a gateway. `traces` is None while traces are off."""
    always: list[Feature] = [Limits(tickets)]
    if traces is not None:
        always.append(Tracer(config.tracing, traces, time_s))
    if config.headers.receipt != "off":
        always.append(Receipts(everyone=config.headers.receipt == "all"))
    made = Features(always, {name: kind() for name, kind in ROUTE_FEATURES.items()})
    made.adopt(config.routes)
    return made

"""The features that are layers around the way of a request, outermost first. Each line names one folder of `layers`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

import msgspec

from router.config.model import Config
from router.gateway.layers.migration.drains import MovableRequest
from router.gateway.layers.migration.layer import Migration
from router.gateway.layers.receipt.layer import Receipts
from router.gateway.layers.response_header.layer import ResponseHeader
from router.gateway.layers.trace.layer import Tracer, TraceSink
from router.gateway.layers.usage.layer import UsageObservation
from router.placement.core import DecisionCore
from router.placement.fleet.fleet import Fleet
from router.requests.layer import Feature, Features
from router.requests.layers.classes.engine_priority import EnginePriorities
from router.requests.layers.classes.layer import RequestClasses
from router.requests.layers.classes.shadow import ClassShadow
from router.requests.layers.limits.layer import Limits
from router.requests.layers.relearn.layer import Relearn, RelearnFeature
from router.requests.layers.route_queue.layer import RouteQueues
from router.requests.metrics import GatewayMetrics

ROUTE_LAYERS: Final[dict[str, type[msgspec.Struct]]] = {
    ResponseHeader.name: ResponseHeader.settings,
    Migration.name: Migration.settings,
}
"""The settings of the features that a route switches on, by their name in a route's `layers`."""


def features(
    config: Config,
    core: DecisionCore,
    fleet: Fleet,
    loop: asyncio.AbstractEventLoop,
    relearn: Relearn | None,
    traces: TraceSink | None,
    classes: RequestClasses | None,
    metrics: GatewayMetrics,
    running: Collection[MovableRequest],
) -> Features:
    """Return the features of a gateway. `relearn`, `traces` and `classes` are None while these are off."""
    made: list[Feature] = [RouteQueues(loop), Limits(core.tickets)]
    if classes is not None:
        made.append(classes)
    elif config.classes:
        made.append(ClassShadow(config, core, fleet))
    if traces is not None:
        made.append(Tracer(config.tracing, traces, loop.time))
    if config.headers.receipt != "off":
        made.append(Receipts(everyone=config.headers.receipt == "all"))
    made += [ResponseHeader(), UsageObservation(config.observe_usage, fleet), RelearnFeature(relearn)]
    if classes is not None:
        made.append(EnginePriorities(config.classes, fleet))
    made.append(Migration(fleet, loop, metrics, running))  # last, because it keeps what the worker gets
    return Features(made, config.routes)

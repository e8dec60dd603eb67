"""The parts that all client connections of one gateway share."""

from __future__ import annotations

import asyncio

from router.config.model import LimitsConfig, TimeoutsConfig
from router.gateway.drain_state import DrainState
from router.gateway.flow.driver import RequestDriver
from router.gateway.flow.services import RequestServices
from router.gateway.http.client.body_buffer_limit import BodyBufferLimit
from router.gateway.http.client.pipelining import PipelineScheduler
from router.gateway.http.client.request_ids import RequestIds
from router.gateway.http.send_buffer_limit import SendBufferLimit
from router.gateway.http.write_coalescer import WriteCoalescer
from router.gateway.local import LocalAnswers
from router.gateway.metrics import GatewayMetrics
from router.security.callers import Callers
from router.security.instance import Instance
from router.security.keys import ApiKeys


class ClientServices:
    """The limits, the API keys and the services for forwarding that a client connection needs."""

    __slots__ = (
        "bodies",
        "callers",
        "drain",
        "instance",
        "keys",
        "limits",
        "local",
        "loop",
        "metrics",
        "outbox",
        "pipelines",
        "request_ids",
        "requests",
        "running",
        "time",
        "timeouts",
        "unsent",
    )

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        limits: LimitsConfig,
        timeouts: TimeoutsConfig,
        metrics: GatewayMetrics,
        drain: DrainState,
        bodies: BodyBufferLimit,
        unsent: SendBufferLimit,
        outbox: WriteCoalescer,
        keys: ApiKeys | None,
        callers: Callers,
        request_ids: RequestIds,
        instance: Instance,
        local: LocalAnswers,
        requests: RequestServices,
        running: set[RequestDriver],
    ) -> None:
        self.loop = loop
        self.time = loop.time
        self.limits = limits
        self.timeouts = timeouts
        self.metrics = metrics
        self.drain = drain
        self.bodies = bodies
        self.unsent = unsent
        self.outbox = outbox
        self.pipelines = PipelineScheduler(loop)
        self.keys = keys
        self.callers = callers
        self.request_ids = request_ids
        self.instance = instance
        self.local = local
        self.requests = requests
        self.running = running

    def allow_unsent(self) -> None:
        for connection in list(self.drain.connections):
            connection.allow_unsent(self.unsent.allowance_bytes)

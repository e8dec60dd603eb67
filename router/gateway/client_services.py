"""The parts that all client connections of one gateway share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class ClientServices:
    """The parts of the gateway that a client connection needs: one argument in place of seventeen for each connection.
    `requests` are the parts for the requests that it forwards.
    """

    loop: asyncio.AbstractEventLoop
    time: Callable[[], float]
    limits: LimitsConfig
    timeouts: TimeoutsConfig
    metrics: GatewayMetrics
    drain: DrainState
    bodies: BodyBufferLimit
    unsent: SendBufferLimit
    outbox: WriteCoalescer
    pipelines: PipelineScheduler
    keys: ApiKeys | None
    callers: Callers
    request_ids: RequestIds
    instance: Instance
    local: LocalAnswers
    requests: RequestServices
    running: set[RequestDriver]

    def allow_unsent(self) -> None:
        for connection in list(self.drain.connections):
            connection.allow_unsent(self.unsent.allowance_bytes)

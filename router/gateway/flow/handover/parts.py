from __future__ import annotations

import asyncio

from backends.vllm.handover.connectors import CONNECTORS
from router.config.model import HandoverConfig
from router.gateway.flow.handover.heartbeat import Heartbeat
from router.gateway.flow.handover.prefill_peers import PrefillPeers
from router.gateway.metrics import GatewayMetrics
from router.placement.dispatcher import Dispatcher
from router.placement.fleet.fleet import Fleet


class HandoverParts:
    """The connector, what is known of the workers, and where to report."""

    def __init__(
        self,
        config: HandoverConfig,
        dispatcher: Dispatcher,
        fleet: Fleet,
        loop: asyncio.AbstractEventLoop,
        metrics: GatewayMetrics,
    ) -> None:
        assert config.connector is not None
        self.config = config
        self.connector = CONNECTORS[config.connector]
        self.dispatcher = dispatcher
        self.heartbeat = Heartbeat(loop)
        self.time = loop.time
        self.metrics = metrics
        self.peers = PrefillPeers(self.connector, fleet, loop)

    def close(self) -> None:
        self.peers.close()

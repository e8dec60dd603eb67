"""What is known of prefill workers beyond their URLs, for connectors whose decode request names the prefill worker."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from backends.vllm.control import ProbeError, WorkerClient
from backends.vllm.handover.connector import Connector, FactSource, HandoverPeer
from backends.vllm.handover.connectors import CONNECTORS
from backends.vllm.handover.mooncake import (
    BOOTSTRAP_PATH,
    BOOTSTRAP_PORT_LABEL,
    MAX_QUERY_BYTES,
    bootstrap_of,
    read_engine_ids,
)
from backends.vllm.handover.parameters import HandoverError
from router.config.model import HandoverConfig
from router.gateway.layers.handover.heartbeat import Heartbeat
from router.placement.core import DecisionCore
from router.placement.fleet.endpoints import Candidate, FleetEndpoint
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.roles import prefills
from router.requests.metrics import GatewayMetrics

log = logging.getLogger("warmroute.gateway")

_ANSWER_S: Final = 2.0
_ASK_AGAIN_S: Final = 5.0
"""How long after a failure a bootstrap server is asked again."""


class PrefillPeers:
    """Facts about prefill workers, until a worker is lost, starts again or fails a handover: an engine id changes with
    each start."""

    def __init__(self, connector: Connector, fleet: Fleet, loop: asyncio.AbstractEventLoop) -> None:
        self._connector = connector
        self._fleet = fleet
        self._loop = loop
        fleet.on_loss.append(self._lost)
        fleet.on_process.append(self._process_seen)
        if connector.facts_from is FactSource.BOOTSTRAP:
            fleet.on_change.append(self._changed)
        self._facts: dict[Candidate, HandoverPeer] = {}
        self._asking: dict[FleetEndpoint, asyncio.Task[None]] = {}
        self._again_s: dict[FleetEndpoint, float] = {}
        """When the bootstrap servers that failed are asked again."""

    def of(self, candidate: Candidate) -> HandoverPeer:
        known = self._facts.get(candidate)
        if known is not None:
            return known
        endpoint = candidate.endpoint
        return self._connector.peer(endpoint.endpoint.host, candidate.rank, endpoint.labels)

    def lacks(self, candidate: Candidate) -> bool:
        """Return whether a decode request for this prefill worker cannot be made yet."""
        return self._connector.facts_from is not FactSource.NOWHERE and candidate not in self._facts

    def learn(self, candidate: Candidate, peer: HandoverPeer) -> None:
        if candidate not in self._facts:
            self._facts = {one: facts for one, facts in self._facts.items() if one.live}
        self._facts[candidate] = peer

    def forget(self, candidate: Candidate) -> None:
        """Drop what is known of a worker: it may have restarted."""
        self._facts.pop(candidate, None)
        if self._connector.facts_from is FactSource.BOOTSTRAP:
            self.ask(candidate.endpoint)

    def close(self) -> None:
        for task in self._asking.values():
            task.cancel()
        if self._lost in self._fleet.on_loss:
            self._fleet.on_loss.remove(self._lost)
            self._fleet.on_process.remove(self._process_seen)
        if self._changed in self._fleet.on_change:
            self._fleet.on_change.remove(self._changed)

    def _lost(self, endpoint: FleetEndpoint) -> None:
        self._facts = {one: facts for one, facts in self._facts.items() if one.endpoint is not endpoint}
        self._again_s.pop(endpoint, None)
        if (asking := self._asking.get(endpoint)) is not None:
            asking.cancel()  # its answer is of the process before

    def _process_seen(self, endpoint: FleetEndpoint, new: bool, asked_s: float) -> None:
        if new:
            self._lost(endpoint)

    def _changed(self) -> None:
        for endpoint in self._fleet.endpoints:
            lacking = any(map(self.lacks, endpoint.candidates))
            if lacking and prefills(endpoint.role, endpoint.labels, self._connector.name):
                self.ask(endpoint)

    # the bootstrap server

    def ask(self, endpoint: FleetEndpoint) -> None:
        """Ask the worker's bootstrap server for its engines, in the background."""
        if endpoint in self._asking or self._loop.time() < self._again_s.get(endpoint, 0.0):
            return
        self._asking[endpoint] = self._loop.create_task(self._ask(endpoint))

    async def _ask(self, endpoint: FleetEndpoint) -> None:
        try:
            server = bootstrap_of(endpoint.endpoint.host, endpoint.labels.get(BOOTSTRAP_PORT_LABEL))
            client = WorkerClient()
            try:
                engines = read_engine_ids(await client.get(server, BOOTSTRAP_PATH, _ANSWER_S, MAX_QUERY_BYTES))
            finally:  # without an await: a compiled coroutine that is cancelled must not wait again
                client.close()
            for candidate in endpoint.candidates:
                if (engine_id := engines.get(candidate.rank or 0)) is not None:
                    peer = HandoverPeer(
                        host=server.host, side_port=server.port, engine_id=engine_id, rank=candidate.rank
                    )
                    self.learn(candidate, peer)
            self._again_s.pop(endpoint, None)
        except (ProbeError, HandoverError) as error:
            if endpoint not in self._again_s:
                log.warning("no KV handover from %s: %s", endpoint.id, error)
            self._again_s = {one: at_s for one, at_s in self._again_s.items() if one.candidates}
            self._again_s[endpoint] = self._loop.time() + _ASK_AGAIN_S
        finally:
            del self._asking[endpoint]


class HandoverParts:
    """The connector, what is known of the workers, and where to report."""

    def __init__(
        self,
        config: HandoverConfig,
        core: DecisionCore,
        fleet: Fleet,
        loop: asyncio.AbstractEventLoop,
        metrics: GatewayMetrics,
        connect_s: float,
    ) -> None:
        assert config.connector is not None
        self.config = config
        self.connector = CONNECTORS[config.connector]
        self.dispatcher = core.dispatcher
        self.planner = core.planner
        self.tickets = core.tickets
        self.heartbeat = Heartbeat(loop)
        self.loop = loop
        self.time = loop.time
        self.connect_s = connect_s
        """The longest time to connect to a worker."""
        self.metrics = metrics
        self.peers = PrefillPeers(self.connector, fleet, loop)

    def close(self) -> None:
        self.peers.close()
